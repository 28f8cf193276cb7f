"""Llama's layout (Touvron et al., arXiv 2302.13971): RMS norms before each part, rotary positions, a gated MLP.

Query heads may share key and value heads (Ainslie et al., arXiv 2305.13245). Only the mathematics of the layers;
nothing here knows of ranks or micro-batches.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from hpcpipe.models.gpt_sliced import slice_embedding, slice_head
from hpcpipe.models.layer import Layer
from hpcpipe.models.llama_sliced import slice_block
from hpcpipe.models.rope import Rope, rotate
from hpcpipe.models.tensor_parallel import Slices, enter

_INIT_STD = 0.02
_TOKEN = "token"


class Embedding(nn.Module):
    """Token embedding: (batch, sequence) int64 -> (batch, sequence, dim)."""

    def __init__(self, *, vocab_size: int, dim: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        nn.init.normal_(self.token.weight, std=_INIT_STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed the tokens."""
        return self.token(tokens)


class Block(nn.Module):
    """Causal self-attention and SwiGLU (Shazeer, arXiv 2002.05202), each behind an RMS norm and added to its input."""

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        kv_heads: int,
        mlp_dim: int,
        norm_eps: float,
        rope: Rope,
        attention_bias: bool,
        mlp_bias: bool,
        depth: int,
    ) -> None:
        super().__init__()
        self._rope, width = rope, rope.width
        self.slices: Slices | None = None
        self.norm_1 = nn.RMSNorm(dim, eps=norm_eps)
        self.query = nn.Linear(dim, heads * width, bias=attention_bias)
        self.key = nn.Linear(dim, kv_heads * width, bias=attention_bias)
        self.value = nn.Linear(dim, kv_heads * width, bias=attention_bias)
        self.attention_out = nn.Linear(heads * width, dim, bias=attention_bias)
        self.norm_2 = nn.RMSNorm(dim, eps=norm_eps)
        self.mlp_gate = nn.Linear(dim, mlp_dim, bias=mlp_bias)
        self.mlp_in = nn.Linear(dim, mlp_dim, bias=mlp_bias)
        self.mlp_out = nn.Linear(mlp_dim, dim, bias=mlp_bias)
        for linear in self.children():
            if isinstance(linear, nn.Linear):
                residual = linear in (self.attention_out, self.mlp_out)  # scaled with the depth, as in GPT-2
                nn.init.normal_(linear.weight, std=_INIT_STD / (2 * depth) ** 0.5 if residual else _INIT_STD)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return (batch, sequence, dim) from the same shape."""
        value = value + self.attention_out(self._attend(enter(self.norm_1(value), self.slices)))
        entry = enter(self.norm_2(value), self.slices)
        return value + self.mlp_out(functional.silu(self.mlp_gate(entry)) * self.mlp_in(entry))

    def _attend(self, value: torch.Tensor) -> torch.Tensor:
        query, key = rotate(self._rope, [self._split(self.query(value)), self._split(self.key(value))])
        content = self._split(self.value(value))
        attended = functional.scaled_dot_product_attention(
            query, key, content, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return attended.transpose(1, 2).flatten(2)

    def _split(self, value: torch.Tensor) -> torch.Tensor:
        """Return (batch, heads, sequence, width) from (batch, sequence, heads * width)."""
        return value.unflatten(-1, (-1, self._rope.width)).transpose(1, 2)


class Head(nn.Module):
    """Final RMS norm and the projection onto the vocabulary."""

    def __init__(self, *, dim: int, vocab_size: int, norm_eps: float) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=norm_eps)
        self.project = nn.Linear(dim, vocab_size, bias=False)
        nn.init.normal_(self.project.weight, std=_INIT_STD)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, sequence, vocab_size)."""
        return self.project(self.norm(value))


def llama_layers(
    *,
    layers: int,
    dim: int,
    heads: int,
    kv_heads: int,
    mlp_dim: int,
    vocab_size: int,
    rope: Rope,
    seq_len: int,
    norm_eps: float = 1e-5,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    tied: bool = False,
) -> Sequence[Layer]:
    """Return the model as a chain of layers with their cost per token.

    A block costs a multiply-add for each entry of its matrices, and 2 · heads · width · seq_len for scores and their
    weighted sum. With `tied` the head projects with the token embedding's matrix.
    """
    block = partial(
        Block,
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        mlp_dim=mlp_dim,
        norm_eps=norm_eps,
        rope=rope,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
        depth=layers,
    )
    of_query, of_key = heads * rope.width, kv_heads * rope.width
    cost = 2.0 * dim * (of_query + of_key) + 3.0 * dim * mlp_dim + 2.0 * of_query * seq_len
    # Of both norms the input, the normalised and the scaled value; turned queries and keys, values, what attention
    # gives; gate, its silu, the other half and their product.
    kept = 6.0 * dim + 2.0 * of_query + 2.0 * of_key + 4.0 * mlp_dim
    token, project = ({"token.weight": _TOKEN}, {"project.weight": _TOKEN}) if tied else ({}, {})
    embedding = partial(Embedding, vocab_size=vocab_size, dim=dim)
    head = partial(Head, dim=dim, vocab_size=vocab_size, norm_eps=norm_eps)
    return [
        Layer("embedding", embedding, 0.0, block=False, ties=token, slice=slice_embedding),
        *(Layer(f"block.{i}", block, cost, block=True, kept=kept, slice=slice_block) for i in range(layers)),
        Layer(
            "head",
            head,
            float(dim * vocab_size),
            block=False,
            ties=project,
            kept=float(3 * dim + vocab_size),
            slice=slice_head,
        ),
    ]
