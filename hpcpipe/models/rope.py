"""Rotary position embeddings (Su et al., arXiv 2104.09864) in the form of Hugging Face's Llama: halves of a head turn.

Only frequencies and the rotation; nothing here knows of layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True, slots=True)
class Rope:
    """Which angles the positions have.

    Parameters
    ----------
    width
        Width of a head; numbers i and i + width / 2 turn together.
    theta
        Base of the wavelengths.
    factor
        By how much the waves are longer: all of them, or where `bands` is given only long ones (Llama 3.1).
    bands
        (low_freq_factor, high_freq_factor, original context): waves of less than context / high_freq_factor tokens are
        kept, those of more than context / low_freq_factor stretched, those between interpolated.
    """

    width: int
    theta: float
    factor: float = 1.0
    bands: tuple[float, float, int] | None = None

    def frequencies(self) -> torch.Tensor:
        """Return the angles per position, float32 (width / 2)."""
        frequencies = 1.0 / self.theta ** (torch.arange(0, self.width, 2, dtype=torch.float) / self.width)
        if self.bands is None:
            return frequencies / self.factor
        low, high, context = self.bands
        waves = context * frequencies / (2 * math.pi)  # how often a wave fits into the original context
        kept = ((waves - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


def rotate(rope: Rope, heads: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Turn tensors of shape (batch, heads, sequence, width) by their positions, which begin at 0."""
    first = heads[0]
    cos, sin = _table(rope, first.shape[-2], first.dtype, first.device)
    return [each * cos + _turned(each) * sin for each in heads]


def _turned(value: torch.Tensor) -> torch.Tensor:
    left, right = value.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


@lru_cache(maxsize=8)  # a run has one length or a few
def _table(rope: Rope, length: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines (length, width), computed in float32."""
    with torch.no_grad(), torch.device(device):
        angles = torch.outer(torch.arange(length, dtype=torch.float), rope.frequencies())
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)
