"""From a rank's comparisons with rank 0's clock to a correction of its times (linear, as Scalasca does).

Pure arithmetic on arrays of ns; it knows no file and no rank.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClockFit:
    """A clock that is ahead of rank 0's by `offset + drift * (t - reference)` ns, give or take `uncertainty` ns.

    `uncertainty` bounds the error between the first and the last comparison, as long as the clock drifts evenly;
    `drift_uncertainty` bounds the drift's (ns per ns). Both are 0 where there was nothing to compare.
    """

    reference: int = 0
    offset: int = 0
    drift: float = 0.0
    uncertainty: int = 0
    drift_uncertainty: float = 0.0

    def correct(self, times: Times) -> Times:
        """Return times of this clock as times of rank 0's clock; whole ns, in the same order."""
        correction = np.int64(self.offset)
        if self.drift:
            correction = self.offset + np.rint(self.drift * (times - self.reference)).astype(np.int64)
        return times - correction


def fit_clock(t_local: Times, offset: Times, round_trip: Times) -> ClockFit:
    """Fit a line through comparisons, each known to half of its round trip.

    Least squares with weights of one over that half squared, so a comparison that load has disturbed hardly counts.
    The line is a sum of the offsets with known coefficients; hence its error is at most the sum of their errors with
    the coefficients' sizes, which is the uncertainty. A drift is believed only if the offsets differ by more than
    their uncertainties together, else the best comparison is taken.
    """
    if not len(t_local):
        return ClockFit()
    half = np.maximum(np.asarray(round_trip, dtype=np.int64) // 2, 1)
    best = int(np.argmin(half))
    reference, base = int(t_local[best]), int(offset[best])
    if len(np.unique(t_local)) < 2:
        return ClockFit(reference, base, 0.0, int(half[best]))
    x = (t_local - reference).astype(np.float64)
    y = (offset - base).astype(np.float64)
    ends = np.array([x.min(), x.max()])
    weights = 1.0 / half.astype(np.float64) ** 2
    center = float(np.average(x, weights=weights))
    spread = float(np.sum(weights * (x - center) ** 2))
    if spread <= 0.0:
        return ClockFit(reference, base, 0.0, int(half[best]))
    slope_of = weights * (x - center) / spread
    middle_of = weights / weights.sum()
    drift, middle = float(slope_of @ y), float(middle_of @ y)
    drift_bound = float(np.abs(slope_of) @ half)
    excess = max(0.0, float(np.max(np.abs(y - middle - drift * (x - center)) - half)))  # the drift was not even
    bounds = np.abs(middle_of + np.outer(ends - center, slope_of)) @ half + excess
    low, high = int(np.argmin(offset)), int(np.argmax(offset))
    if int(offset[high]) - int(offset[low]) <= int(half[low]) + int(half[high]):
        off = np.abs(middle + drift * (ends - center)) + bounds
        return ClockFit(reference, base, 0.0, round(float(off.max())), drift_bound + abs(drift))
    shift = base + round(middle - drift * center)
    return ClockFit(reference, shift, drift, round(float(bounds.max())), drift_bound)
