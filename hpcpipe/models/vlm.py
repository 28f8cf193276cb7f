"""A vision-language model: a vision transformer, a projector and a GPT, one chain of layers that can be cut anywhere.

Between layers goes a dict of tensors and plain numbers. Images and texts of a micro-batch are packed without padding;
nothing here knows of files, ranks or micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from hpcpipe.models.gpt import INIT_STD, KEPT_OF_A_BLOCK, Block, Head
from hpcpipe.models.gpt_sliced import slice_head
from hpcpipe.models.layer import Layer
from hpcpipe.models.vit import EncoderBlock, Patches
from hpcpipe.models.vlm_sliced import slice_inner_block, slice_projector

_TOKEN = "token"


@dataclass(frozen=True, slots=True)
class VlmSizes:
    """The sizes of a vision-language model.

    `merge` by `merge` neighbouring patches become one token of the language model; `context` is its longest sequence,
    image tokens included.
    """

    patch: int
    channels: int
    merge: int
    encoder_layers: int
    encoder_dim: int
    encoder_heads: int
    layers: int
    dim: int
    heads: int
    context: int
    vocab_size: int
    tied: bool = False


class Load(NamedTuple):
    """What decides the cost of some records; loads add up, so the numbers may be means too.

    `patch_pairs` and `token_pairs` are the sums over images and sequences of their squared lengths, `image_tokens` are
    part of `tokens`, and `targets` is how many tokens the loss counts.
    """

    patches: float
    patch_pairs: float
    image_tokens: float
    tokens: float
    token_pairs: float
    targets: float


class Projector(nn.Module):
    """Turn an encoder's patches into tokens among those of the text, with learned positions.

    Of the dict's tensors, "patches" and "text" (texts of all records, int64) become "tokens" (tokens, dim): token i is
    number "order"[i] of the texts' tokens followed by the images'. "lengths" lists the records' tokens.
    """

    def __init__(self, *, sizes: VlmSizes) -> None:
        super().__init__()
        dim, merged = sizes.dim, sizes.encoder_dim * sizes.merge**2
        self._merged = merged
        self.norm = nn.LayerNorm(sizes.encoder_dim)
        self.project_in = nn.Linear(merged, dim)
        self.project_out = nn.Linear(dim, dim)
        self.token = nn.Embedding(sizes.vocab_size, dim)
        self.position = nn.Embedding(sizes.context, dim)
        for linear in (self.project_in, self.project_out):
            nn.init.normal_(linear.weight, std=INIT_STD)
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.token.weight, std=INIT_STD)
        nn.init.normal_(self.position.weight, std=INIT_STD)

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return "tokens", "lengths" and "predict"."""
        lengths, order = value["lengths"], value["order"]
        hidden = self.project_in(self.norm(value["patches"]).reshape(-1, self._merged))
        images = self.project_out(functional.gelu(hidden, approximate="tanh"))
        tokens = torch.cat([self.token(value["text"]), images]).index_select(0, order)
        where = torch.cat([torch.arange(length, device=order.device) for length in lengths])
        return {"tokens": tokens + self.position(where), "lengths": lengths, "predict": value["predict"]}


class LanguageBlock(nn.Module):
    """A GPT block in which every token sees those before it in its own record."""

    def __init__(self, *, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.block = Block(dim=dim, heads=heads, depth=depth, dropout=0.0)

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Change "tokens"; the rest of the dict goes on."""
        return value | {"tokens": self.block(value["tokens"].unsqueeze(0), value["lengths"]).squeeze(0)}


class TextHead(Head):
    """Logits where the next token is one that counts: only there, so image tokens cost nothing here."""

    def forward(self, value: Any) -> torch.Tensor:
        """Return (targets, vocab_size) for the tokens whose numbers "predict" holds."""
        return super().forward(value["tokens"].index_select(0, value["predict"]))


def vlm_layers(sizes: VlmSizes, mean: Load) -> Sequence[Layer]:
    """Return the model as a chain of layers; their cost per token is that of a record with the `mean` load.

    The blocks that `[parallel].split` counts are those of the encoder, the projector, and those of the language model.
    """
    encoder = partial(EncoderBlock, dim=sizes.encoder_dim, heads=sizes.encoder_heads, depth=sizes.encoder_layers)
    language = partial(LanguageBlock, dim=sizes.dim, heads=sizes.heads, depth=sizes.layers)
    patches = partial(Patches, channels=sizes.channels, patch=sizes.patch, dim=sizes.encoder_dim, merge=sizes.merge)
    head = partial(TextHead, dim=sizes.dim, vocab_size=sizes.vocab_size)
    token, project = ({"token.weight": _TOKEN}, {"project.weight": _TOKEN}) if sizes.tied else ({}, {})
    costs = iter(layer_costs(sizes, mean))

    def layer(name: str, make: Callable[[], nn.Module], kept: float, *, block: bool, **more: Any) -> Layer:
        return Layer(name, make, next(costs) / mean.tokens, block=block, kept=kept / mean.tokens, **more)

    wide, dim = sizes.encoder_dim * mean.patches, sizes.dim * mean.tokens
    projected = 2 * wide + 2 * sizes.dim * mean.image_tokens + dim
    return [
        layer("patches", patches, wide, block=False),
        *(
            layer(f"encoder.{i}", encoder, KEPT_OF_A_BLOCK * wide, block=True, slice=slice_inner_block)
            for i in range(sizes.encoder_layers)
        ),
        layer("projector", partial(Projector, sizes=sizes), projected, block=True, ties=token, slice=slice_projector),
        *(
            layer(f"language.{i}", language, KEPT_OF_A_BLOCK * dim, block=True, slice=slice_inner_block)
            for i in range(sizes.layers)
        ),
        layer(
            "head",
            head,
            (sizes.dim + sizes.vocab_size) * mean.targets,
            block=False,
            ties=project,
            slice=slice_head,
        ),
    ]


def layer_costs(sizes: VlmSizes, load: Load) -> list[float]:
    """Return the multiply-adds of every layer's forward for some records.

    A block costs 12 dim² for each element's four matrices and 2 dim for each pair that attends.
    """
    wide, dim = sizes.encoder_dim, sizes.dim
    encoder = 12.0 * wide * wide * load.patches + 2.0 * wide * load.patch_pairs
    language = 12.0 * dim * dim * load.tokens + 2.0 * dim * load.token_pairs
    return [
        float(sizes.channels * sizes.patch**2 * wide) * load.patches,
        *[encoder] * sizes.encoder_layers,
        float(wide * dim) * load.patches + float(dim * dim) * load.image_tokens,
        *[language] * sizes.layers,
        float(dim * sizes.vocab_size) * load.targets,
    ]


def text_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy summed over the micro-batch's targets; `labels` (targets,) int64 are what comes next."""
    return functional.cross_entropy(logits.float(), labels, reduction="sum")
