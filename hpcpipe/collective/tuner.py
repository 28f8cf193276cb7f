"""Which bucket size to try next: Bayesian optimisation of the measured step time over the size's logarithm.

It sees step times and returns sizes; who measures, agrees and makes new buckets is not its business. DeAR (arXiv
2302.12445) tunes its threshold so; here trials weigh by their noise and the search ends when little is to be expected.
"""

import warnings
from collections.abc import Sequence
from math import log, sqrt
from statistics import median
from typing import Any, NamedTuple

import numpy as np

_SIZES_AN_OCTAVE = 2
_UNCERTAINTY_OF_A_MEDIAN = 1.2533
"""Standard error of a median of normal values, in those of their mean (asymptotically sqrt(pi / 2))."""


class Trial(NamedTuple):
    """Steps taken with buckets of one size: the median step time and its standard error, in seconds."""

    bucket_mb: float
    step_s: float
    error_s: float


class MissingLibraryError(ImportError):
    """scikit-learn is not installed."""


class FusionTuner:
    """Finds the bucket size with the shortest steps.

    A Gaussian process with a Matern kernel is fitted to the logarithm of the step time over log2 of the size; the next
    size is that of the largest expected improvement (Jones et al., 1998). The first trials are at the start's size and
    at two of a 16th, a quarter and a 64th of the largest, those that are not next to the start.

    Parameters
    ----------
    start_mb, smallest_mb, largest_mb
        Where to begin and between which sizes to search, in MB (10^6 bytes).
    steps
        Steps of a trial; one more before them is not counted, as new buckets are made in it.
    gain
        The search ends when no size is expected to be better by this share.
    most
        It ends after so many trials at the latest.
    trials
        What an earlier search has measured; it goes on from there.
    settled_mb
        What an earlier search has ended with; then nothing is looked for.

    Raises
    ------
    MissingLibraryError
        scikit-learn is not installed.
    """

    def __init__(
        self,
        *,
        start_mb: float,
        smallest_mb: float,
        largest_mb: float,
        steps: int = 5,
        gain: float = 0.01,
        most: int = 20,
        trials: Sequence[Trial] = (),
        settled_mb: float | None = None,
    ) -> None:
        try:
            import sklearn.gaussian_process  # noqa: F401
        except ImportError as error:
            raise MissingLibraryError(
                "[tune] fusion = \"on\" needs scikit-learn: pip install 'hpcpipe[tune]', or set a bucket_mb that suits"
            ) from error
        smallest, largest = min(smallest_mb, start_mb), max(largest_mb, start_mb)
        octaves = max(1, round(_SIZES_AN_OCTAVE * log(largest / smallest, 2)))
        grid = {float(size) for size in np.geomspace(smallest, largest, octaves + 1)} | {start_mb}
        self._grid = sorted(grid)
        apart = [self._nearest(largest / part) for part in (16, 4, 64)]
        self._first = [start_mb, *[size for size in apart if abs(log(size / start_mb, 2)) > 1][:2]]
        self._steps, self._gain, self._most = steps, gain, most
        self.trials = list(trials)
        self._times: list[float] = []
        self.expected_gain = 1.0
        self.done = False
        self.bucket_mb = start_mb
        if settled_mb is not None:
            self.bucket_mb, self.done = settled_mb, True
        elif trials:
            self._choose()

    def observe(self, step_s: float) -> bool:
        """Take the time of a step that was taken with `bucket_mb`; return whether that is another size now."""
        if self.done:
            return False
        self._times.append(step_s)
        if len(self._times) <= self._steps:
            return False
        counted, self._times = self._times[1:], []
        error = _UNCERTAINTY_OF_A_MEDIAN * float(np.std(counted, ddof=1)) / sqrt(len(counted))
        self.trials.append(Trial(self.bucket_mb, median(counted), error))
        before = self.bucket_mb
        self._choose()
        return self.bucket_mb != before

    def _choose(self) -> None:
        left = [size for size in self._first if size not in {trial.bucket_mb for trial in self.trials}]
        if left:
            self.bucket_mb = left[0]
            return
        process = self._fit()
        tried = sorted({trial.bucket_mb for trial in self.trials})
        means = process.predict(_inputs(tried))
        best = float(means.min())
        mean, deviation = process.predict(_inputs(self._grid), return_std=True)
        improvement = _expected_improvement(best, mean, deviation)
        self.expected_gain = float(improvement.max())
        self.done = self.expected_gain < self._gain or len(self.trials) >= self._most
        self.bucket_mb = tried[int(means.argmin())] if self.done else self._grid[int(improvement.argmax())]

    def _fit(self) -> Any:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        times = np.array([log(trial.step_s) for trial in self.trials])
        noise = np.array([max(trial.error_s / trial.step_s, 1e-3) ** 2 for trial in self.trials])
        spread = max(float(np.var(times)), 1e-6)
        octaves = log(self._grid[-1] / self._grid[0], 2) + 1
        kernel = ConstantKernel(spread, (spread / 4, spread * 16)) * Matern(octaves / 4, (1.0, 2 * octaves), nu=2.5)
        process = GaussianProcessRegressor(kernel, alpha=noise, random_state=0)
        middle = float(times.mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound is an answer: the curve is flat
            process.fit(_inputs([trial.bucket_mb for trial in self.trials]), times - middle)
        return process

    def _nearest(self, size: float) -> float:
        return min(self._grid, key=lambda each: abs(log(each / size)))


def _inputs(sizes: Sequence[float]) -> np.ndarray:
    return np.log2(np.asarray(sizes))[:, None]


def _expected_improvement(best: float, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Return E[max(0, best - value)] of normal values, by their mean and deviation."""
    from scipy.stats import norm

    deviation = np.maximum(deviation, 1e-12)
    score = (best - mean) / deviation
    return np.asarray((best - mean) * norm.cdf(score) + deviation * norm.pdf(score))
