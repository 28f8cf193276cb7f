"""GPT-2's layout (Radford et al., 2019): token and position embedding, pre-norm blocks, final norm and a head.

Only the mathematics of the layers and the loss; nothing here knows of ranks or micro-batches.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from hpcpipe.models.gpt_sliced import slice_block, slice_embedding, slice_head
from hpcpipe.models.layer import Layer
from hpcpipe.models.tensor_parallel import Slices, own_draws

INIT_STD = 0.02
_TOKEN = "token"
KEPT_OF_A_BLOCK = 17
"""Values that a block's backward needs, a token and width: 34 bytes of 2 each (Korthikanti, arXiv 2205.05198)."""


class Embedding(nn.Module):
    """Token plus learned position embedding: (batch, sequence) int64 -> (batch, sequence, dim)."""

    def __init__(self, *, vocab_size: int, context: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(context, dim)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.token.weight, std=INIT_STD)
        nn.init.normal_(self.position.weight, std=INIT_STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed the tokens."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token(tokens) + self.position(positions))


class Block(nn.Module):
    """Self-attention, causal unless told otherwise, and an MLP of width 4 dim, each normed before and added after."""

    def __init__(
        self, *, dim: int, heads: int, depth: int, dropout: float, norm_eps: float = 1e-5, causal: bool = True
    ) -> None:
        super().__init__()
        self._heads = heads
        self._causal = causal
        self._dropout = dropout
        self.slices: Slices | None = None
        self.norm_1 = nn.LayerNorm(dim, eps=norm_eps)
        self.attention_in = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.norm_2 = nn.LayerNorm(dim, eps=norm_eps)
        self.mlp_in = nn.Linear(dim, 4 * dim)
        self.mlp_out = nn.Linear(4 * dim, dim)
        for linear in (self.attention_in, self.attention_out, self.mlp_in, self.mlp_out):
            nn.init.normal_(linear.weight, std=INIT_STD)
            nn.init.zeros_(linear.bias)
        for residual in (self.attention_out, self.mlp_out):  # GPT-2 scales the residual paths with the depth
            nn.init.normal_(residual.weight, std=INIT_STD / (2 * depth) ** 0.5)

    def forward(self, value: torch.Tensor, lengths: Sequence[int] | None = None) -> torch.Tensor:
        """Return (batch, sequence, dim) from the same shape.

        With `lengths` the sequence is several, one after the other, and none of them sees another.
        """
        value = value + self._drop(self.attention_out(self._attend(self.norm_1(value), lengths)))
        hidden = functional.gelu(self.mlp_in(self.norm_2(value)), approximate="tanh")
        return value + self._drop(self.mlp_out(hidden))

    def _attend(self, value: torch.Tensor, lengths: Sequence[int] | None) -> torch.Tensor:
        batch, sequence, dim = value.shape
        width, projected = dim // self._heads, self.attention_in(value)
        heads = projected.view(batch, sequence, 3, projected.shape[-1] // (3 * width), width)
        query, key, content = heads.permute(2, 0, 3, 1, 4)
        rate = self._dropout if self.training else 0.0
        attend = partial(functional.scaled_dot_product_attention, dropout_p=rate, is_causal=self._causal)
        with own_draws(self.slices if rate else None, value):
            if lengths:
                parts = zip(*(each.split(list(lengths), dim=2) for each in (query, key, content)), strict=True)
                attended = torch.cat([attend(*part) for part in parts], dim=2)
            else:
                attended = attend(query, key, content)
        return attended.transpose(1, 2).flatten(2)

    def _drop(self, value: torch.Tensor) -> torch.Tensor:
        return functional.dropout(value, self._dropout, self.training)


class Head(nn.Module):
    """Final LayerNorm and the projection onto the vocabulary."""

    def __init__(self, *, dim: int, vocab_size: int, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.project = nn.Linear(dim, vocab_size, bias=False)
        nn.init.normal_(self.project.weight, std=INIT_STD)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, sequence, vocab_size)."""
        return self.project(self.norm(value))


def gpt_layers(
    *,
    layers: int,
    dim: int,
    heads: int,
    context: int,
    vocab_size: int,
    dropout: float,
    seq_len: int,
    tied: bool = False,
    norm_eps: float = 1e-5,
) -> Sequence[Layer]:
    """Return the model as a chain of layers with their cost per token.

    With `tied` the head projects with the token embedding's matrix (Press and Wolf, arXiv 1608.05859), as GPT-2 does.

    A block costs 12 dim² multiply-adds for its four matrices and 2 dim · seq_len for scores and their weighted sum.
    """
    block = partial(Block, dim=dim, heads=heads, depth=layers, dropout=dropout, norm_eps=norm_eps)
    embedding = partial(Embedding, vocab_size=vocab_size, context=context, dim=dim, dropout=dropout)
    head = partial(Head, dim=dim, vocab_size=vocab_size, norm_eps=norm_eps)
    token, project = ({"token.weight": _TOKEN}, {"project.weight": _TOKEN}) if tied else ({}, {})
    of_block, kept = 12.0 * dim * dim + 2.0 * dim * seq_len, float(KEPT_OF_A_BLOCK * dim)
    return [
        Layer("embedding", embedding, 0.0, block=False, ties=token, kept=float(dim), slice=slice_embedding),
        *(Layer(f"block.{i}", block, of_block, block=True, kept=kept, slice=slice_block) for i in range(layers)),
        Layer(
            "head",
            head,
            float(dim * vocab_size),
            block=False,
            ties=project,
            kept=float(dim + vocab_size),
            slice=slice_head,
        ),
    ]


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor, *, tokens: int) -> torch.Tensor:
    """Return the micro-batch's cross-entropy summed over its tokens and divided by `tokens` of the whole global batch.

    So the shares of all micro-batches and replicas add up to the mean over the global batch, whatever its layout.
    """
    flat = logits.flatten(0, 1).float()
    return functional.cross_entropy(flat, targets.flatten(), reduction="sum") / tokens
