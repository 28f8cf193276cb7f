"""What follows from the gradients' norm, the same on all ranks: whether the step is taken, and with what factor.

Pure numbers; how ranks get each other's squares is norm.py's matter.
"""

from collections.abc import Sequence
from math import fsum, isfinite, nan, sqrt
from struct import pack, unpack
from typing import NamedTuple

_EPS = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to a norm before it divides by it."""


class Verdict(NamedTuple):
    """What ranks agreed on about a step's gradients.

    `norm` is that of the unscaled gradients before clipping, `factor` what gradients are multiplied by for the update.
    """

    finite: bool
    norm: float
    factor: float


def judge(squares: Sequence[float], *, members: Sequence[int], clip: float | None, scale: float) -> Verdict:
    """Return what follows from the squared norms of all ranks, of gradients that a loss scale has made larger.

    The factor is min(1, clip / (norm + 1e-6)) / scale, as torch.nn.utils.clip_grad_norm_ after unscaling. Squares are
    added without rounding in between and the norm is rounded to fp32, so that the order and the number of the ranks
    among which the same squares are dealt out change no bit, unless the sum lies within 1e-15 of where fp32 rounds.

    Parameters
    ----------
    squares
        One of each rank; each element of a gradient is in one of them only. A single NaN or infinity makes a step that
        is not finite.
    members
        The ranks whose gradients make the norm.
    clip
        The largest norm; None for any.
    """
    if not all(map(isfinite, squares)):
        return Verdict(False, nan, 0.0)
    norm = _in_fp32(sqrt(fsum(squares[rank] for rank in members)) / scale)
    factor = 1.0 if clip is None else min(1.0, clip / (norm + _EPS))
    return Verdict(True, norm, factor / scale)


def _in_fp32(value: float) -> float:
    try:
        return float(unpack("f", pack("f", value))[0])
    except OverflowError:  # a finite norm beyond fp32: no bit of it matters, as the factor is next to nothing
        return value
