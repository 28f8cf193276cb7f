"""How the layers of a vision-language model are cut into tensor-parallel slices: as those of a GPT, in both its parts.

The patches' first layer, norms and positions are whole on every slice; nothing here knows how slices sum.
"""

import torch
from torch import nn

from hpcpipe.models.gpt_sliced import slice_block, slice_embedding
from hpcpipe.models.tensor_parallel import Slices, by_columns, by_rows, sliced_cross_entropy


def slice_inner_block(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's heads and hidden columns of the block in a layer."""
    slice_block(layer.block, slices)  # type: ignore[arg-type]


def slice_projector(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's tokens and its hidden columns of the projection."""
    slice_embedding(layer, slices)
    by_columns(layer.project_in, slices)  # type: ignore[arg-type]
    by_rows(layer.project_out, slices)  # type: ignore[arg-type]


def sliced_text_loss(logits: torch.Tensor, labels: torch.Tensor, slices: Slices) -> torch.Tensor:
    """Return what `text_loss` returns, on every slice, from this rank's logits (targets, vocab_size / count)."""
    return sliced_cross_entropy(logits.float(), labels, slices)
