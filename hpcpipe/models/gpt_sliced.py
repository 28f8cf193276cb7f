"""How the layers of a GPT are cut into tensor-parallel slices: heads, hidden columns and tokens are dealt out evenly.

Norms and the position embedding are whole on every slice; nothing here knows how slices sum.
"""

import torch
from torch import nn

from hpcpipe.models.tensor_parallel import Slices, by_columns, by_rows, by_vocabulary, sliced_cross_entropy


def slice_embedding(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's tokens."""
    assert isinstance(layer.token, nn.Embedding)
    by_vocabulary(layer.token, slices)


def slice_block(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's heads and its columns of the MLP."""
    by_columns(layer.attention_in, slices, groups=3)  # type: ignore[arg-type]
    by_rows(layer.attention_out, slices)  # type: ignore[arg-type]
    by_columns(layer.mlp_in, slices)  # type: ignore[arg-type]
    by_rows(layer.mlp_out, slices)  # type: ignore[arg-type]
    layer.slices = slices  # type: ignore[assignment]


def slice_head(layer: nn.Module, slices: Slices) -> None:
    """Keep this rank's logits."""
    assert isinstance(layer.project, nn.Linear)
    by_columns(layer.project, slices)


def sliced_next_token_loss(logits: torch.Tensor, targets: torch.Tensor, *, tokens: int, slices: Slices) -> torch.Tensor:
    """Return what `next_token_loss` returns, on every slice, from this rank's logits (..., vocab_size / count)."""
    return sliced_cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), slices) / tokens
