"""From a rank's comparisons with rank 0's clock to a correction of its times (linear, as Scalasca does).

Pure arithmetic on arrays of ns; it knows no file and no rank.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClockFit:
    """A clock that is ahead of rank 0's by `offset + drift * (t - reference)` ns, give or take `uncertainty` ns."""

    reference: int = 0
    offset: int = 0
    drift: float = 0.0
    uncertainty: int = 0

    def correct(self, times: Times) -> Times:
        """Return times of this clock as times of rank 0's clock; whole ns, in the same order."""
        correction = np.int64(self.offset)
        if self.drift:
            correction = self.offset + np.rint(self.drift * (times - self.reference)).astype(np.int64)
        return times - correction


def fit_clock(t_local: Times, offset: Times, round_trip: Times) -> ClockFit:
    """Fit a line through comparisons, each known to half of its round trip.

    A drift is believed only if the offsets differ by more than their uncertainties together, else the best sample is.
    """
    if not len(t_local):
        return ClockFit()
    half = np.maximum(np.asarray(round_trip, dtype=np.int64) // 2, 1)
    best = int(np.argmin(half))
    low, high = int(np.argmin(offset)), int(np.argmax(offset))
    reference, base = int(t_local[best]), int(offset[best])
    moved = int(offset[high]) - int(offset[low])
    if len(np.unique(t_local)) < 2 or moved <= int(half[low]) + int(half[high]):
        return ClockFit(reference, base, 0.0, int(half[best]))
    x = (t_local - reference).astype(np.float64)
    y = (offset - base).astype(np.float64)
    drift, shift = np.polyfit(x, y, 1, w=1.0 / half)
    residual = float(np.max(np.abs(y - (shift + drift * x))))
    return ClockFit(reference, base + round(float(shift)), float(drift), int(max(residual, float(half.max()))))
