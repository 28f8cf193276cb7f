"""A vision transformer (arXiv 2010.11929) over images of any size, packed one after the other without padding.

Positions are sines of row and column, so no size is special; it knows nothing of text, ranks or micro-batches.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from hpcpipe.models.gpt import INIT_STD, Block

Grid = Sequence[int]
"""Rows and columns of an image in patches."""

_WAVELENGTH = 10_000.0


class Patches(nn.Module):
    """Patches as vectors, with their positions: a convolution whose kernel and stride are the patch, as a Linear.

    The value is a dict; of it, "pixels" (patches, channels · patch²) uint8 becomes "patches" (patches, dim), and
    "grids" lists the images' rows and columns. Within an image, patches that the projector merges are neighbours.
    """

    def __init__(self, *, channels: int, patch: int, dim: int, merge: int) -> None:
        super().__init__()
        self._merge = merge
        self.embed = nn.Linear(channels * patch * patch, dim)
        nn.init.normal_(self.embed.weight, std=INIT_STD)
        nn.init.zeros_(self.embed.bias)

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Embed the patches; the rest of the dict goes on."""
        rest = {name: each for name, each in value.items() if name != "pixels"}
        weight = self.embed.weight
        pixels = (value["pixels"].float() / 127.5 - 1.0).to(weight.dtype)
        where = positions(value["grids"], dim=weight.shape[0], merge=self._merge, device=weight.device)
        return {"patches": self.embed(pixels) + where.to(weight.dtype), **rest}


class EncoderBlock(nn.Module):
    """A transformer block in which every patch sees all patches of its own image."""

    def __init__(self, *, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.block = Block(dim=dim, heads=heads, depth=depth, dropout=0.0, causal=False)

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        """Change "patches"; the rest of the dict goes on."""
        lengths = [rows * columns for rows, columns in value["grids"]]
        return value | {"patches": self.block(value["patches"].unsqueeze(0), lengths).squeeze(0)}


def positions(grids: Sequence[Grid], *, dim: int, merge: int, device: torch.device | None = None) -> torch.Tensor:
    """Return (patches, dim) float32: sines and cosines of the row in one half, of the column in the other.

    As for words (arXiv 1706.03762), once for each direction; `dim` is a multiple of 4. The order of an image's patches
    is that of its merge by merge squares row by row, within a square row by row.
    """
    none = torch.zeros(0, 2, dtype=torch.int64, device=device)
    where = torch.cat([none, *(_rows_and_columns(*grid, merge, device) for grid in grids)])
    frequencies = _WAVELENGTH ** (-torch.arange(dim // 4, device=device) / (dim // 4))
    angles = where.unsqueeze(-1) * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)


@lru_cache(maxsize=1024)  # made where it is needed: a copy from the host would wait for all that a GPU has been given
def _rows_and_columns(rows: int, columns: int, merge: int, device: torch.device | None) -> torch.Tensor:
    row, column = torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij")
    both = torch.stack([row, column], dim=-1)
    squares = both.view(rows // merge, merge, columns // merge, merge, 2).transpose(1, 2)
    return squares.reshape(-1, 2)
