"""Compares runs step by step and class by class, and says whether a difference is larger than the noise.

Intervals come from a block bootstrap over steps (Künsch 1989), as neighbouring steps resemble each other; the seed is
fixed, so the same logs give the same numbers. It reads reports, no logs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.results import Report
from hpcpipe.plan import TimeClass

Floats = NDArray[np.float64]

RESAMPLES = 4000
CONFIDENCE = 0.95
LEAST_STEPS = 5
_SEED = 20260101
_MOST_WARMUP = 0.25
_OUTLIER = 4.0


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean of the second run minus mean of the first, and its interval; `certain`: it does not hold 0."""

    mean: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the difference is larger than the noise."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs. `step` in ns; `relative` to the first run's mean step; `classes` in ns a step on a rank, mean of ranks.

    `paired`: the same steps of both were subtracted, in which both then see the same data. `warmup`: so many of the
    first steps of each were left out. `num_steps` are what remains; below `LEAST_STEPS` there is no interval and all
    differences are None.
    """

    first: str
    second: str
    paired: bool
    warmup: tuple[int, int]
    num_steps: tuple[int, int]
    means: tuple[float, float]
    step: Difference | None
    relative: Difference | None
    classes: dict[TimeClass, Difference]
    same_tokens: bool


def compare(first: Report, second: Report) -> Comparison:
    """Compare two runs.

    The intervals of the classes hold together with the confidence (Bonferroni's correction); the step's own by itself.
    """
    skipped = num_warmup(first.step_times.wall), num_warmup(second.step_times.wall)
    ours, theirs = _table(first, skipped[0]), _table(second, skipped[1])
    ours_steps, theirs_steps = first.step_numbers[skipped[0] :], second.step_numbers[skipped[1] :]
    common, one, two = np.intersect1d(ours_steps, theirs_steps, return_indices=True)
    same_tokens = bool(np.isclose(first.throughput.tokens_per_step, second.throughput.tokens_per_step))
    paired = same_tokens and 2 * len(common) >= max(len(ours), len(theirs))
    if paired:
        ours, theirs = ours[one], theirs[two]
    means = float(ours[:, 0].mean()), float(theirs[:, 0].mean())
    step = relative = None
    classes: dict[TimeClass, Difference] = {}
    if min(len(ours), len(theirs)) >= LEAST_STEPS:
        samples = _bootstrap(ours, theirs, paired=paired)
        mean = theirs.mean(axis=0) - ours.mean(axis=0)
        step = _interval(mean[0], samples[:, 0], 1 - CONFIDENCE)
        relative = Difference(step.mean / means[0], step.low / means[0], step.high / means[0])
        shown = [each for each in TimeClass if each and (ours[:, each].any() or theirs[:, each].any())]
        for each in shown:
            classes[each] = _interval(mean[each], samples[:, each], (1 - CONFIDENCE) / len(shown))
    return Comparison(
        first.run, second.run, paired, skipped, (len(ours), len(theirs)), means, step, relative, classes, same_tokens
    )


def num_warmup(lengths: NDArray[np.int64]) -> int:
    """Return how many of the first steps are longer than is usual later: caches, allocations, the first messages.

    The usual is the median of the second half, give or take four robust deviations (1.4826 times the median absolute
    deviation); not more than a quarter of the steps is left out.
    """
    later = lengths[len(lengths) // 2 :].astype(np.float64)
    if len(lengths) < 2 * LEAST_STEPS:
        return 0
    middle = float(np.median(later))
    spread = max(1.4826 * float(np.median(np.abs(later - middle))), 0.001 * middle)
    most = int(_MOST_WARMUP * len(lengths))
    usual = np.flatnonzero(lengths[: most + 1] <= middle + _OUTLIER * spread)
    return int(usual[0]) if len(usual) else most


def _table(report: Report, skipped: int) -> Floats:
    """Return a row a step: its length, then the ns of class i in column i, mean over ranks."""
    table = report.step_classes[skipped:].astype(np.float64) / len(report.ranks)
    table[:, 0] = report.step_times.wall[skipped:]
    return table


def _bootstrap(ours: Floats, theirs: Floats, *, paired: bool) -> Floats:
    """Return the differences of means of resampled steps."""
    chance = np.random.default_rng(_SEED)
    if paired:
        return _resampled_means(theirs - ours, chance)
    return _resampled_means(theirs, chance) - _resampled_means(ours, chance)


def _resampled_means(table: Floats, chance: np.random.Generator) -> Floats:
    """Return means of steps drawn in blocks of about the cube root of their number, from a circle of all steps."""
    count = len(table)
    block = max(1, round(count ** (1 / 3)))
    around = np.concatenate([table, table[: block - 1]])
    sums = np.cumsum(np.concatenate([np.zeros((1, table.shape[1])), around]), axis=0)
    blocks = sums[block:] - sums[:-block]
    drawn = -(-count // block)
    means = np.empty((RESAMPLES, table.shape[1]))
    for i in range(RESAMPLES):
        means[i] = blocks[chance.integers(0, count, drawn)].sum(axis=0) / (drawn * block)
    return means


def _interval(mean: float, samples: Floats, error: float) -> Difference:
    low, high = np.quantile(samples, [error / 2, 1 - error / 2])
    return Difference(float(mean), float(low), float(high))
