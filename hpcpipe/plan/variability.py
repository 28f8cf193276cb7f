"""How task durations vary: small models, each a pure function of the seed and the place.

A factor has mean 1 where the model has a mean, so that models of different spread cost the same on average.
"""

from dataclasses import dataclass
from math import exp
from typing import Protocol

from hpcpipe.plan.draws import normal, uniform
from hpcpipe.plan.task import Kind, Task


class Compute(Protocol):
    """Varies the duration of a task."""

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the duration of this task from its usual one; any unit."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Every task takes its usual time."""

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the usual duration."""
        del seed, step, stage, task
        return duration


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Each task by itself: exp(sigma z - sigma² / 2)."""

    sigma: float

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the varied duration."""
        return duration * _lognormal(self.sigma, seed, step, stage, *_place(task))


@dataclass(frozen=True, slots=True)
class HeavyTail:
    """A task takes `factor` times as long with a probability; all are scaled down so that the mean stays."""

    probability: float
    factor: float

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the varied duration."""
        long = uniform(seed, step, stage, *_place(task)) < self.probability
        return duration * (self.factor if long else 1.0) / (1.0 + self.probability * (self.factor - 1.0))


@dataclass(frozen=True, slots=True)
class Straggler:
    """One stage is slower than the others by a factor."""

    stage: int
    factor: float

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the varied duration."""
        del seed, step, task
        return duration * (self.factor if stage == self.stage else 1.0)


@dataclass(frozen=True, slots=True)
class Jitter:
    """With a probability a delay of alpha · max(base, duration) · (0.5 + U(0, 1)) is added (RRFP, table 6).

    The paper takes an exponential average of past durations where the usual duration stands here, so that a draw does
    not depend on the order of execution. `base` is in the unit of the durations.
    """

    probability: float
    base: float
    alpha: float

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the varied duration."""
        if uniform(seed, step, stage, *_place(task), 3) >= self.probability:
            return duration
        spread = 0.5 + uniform(seed, step, stage, *_place(task), 4)
        return duration + self.alpha * max(self.base, duration) * spread


@dataclass(frozen=True, slots=True)
class MicrobatchCost:
    """The cost follows the micro-batch, the same on all stages: lengths of sequences, numbers of images.

    With `stages` it varies on the first that many stages only, as with an encoder.
    """

    sigma: float
    stages: int | None = None

    def vary(self, duration: float, *, seed: int, step: int, stage: int, task: Task) -> float:
        """Return the varied duration."""
        if self.stages is not None and stage >= self.stages:
            return duration
        return duration * self.factor(seed=seed, step=step, microbatch=task.microbatch)

    def factor(self, *, seed: int, step: int, microbatch: int) -> float:
        """Return a micro-batch's cost relative to the mean; what an admission order can know beforehand."""
        return _lognormal(self.sigma, seed, step, microbatch)


def _lognormal(sigma: float, seed: int, *where: int) -> float:
    return exp(sigma * normal(seed, *where) - 0.5 * sigma * sigma)


def _place(task: Task) -> tuple[int, int, int]:
    """Return the place of a draw: W shares B's, so a split backward varies as the whole one does."""
    return task.microbatch, task.chunk, int(Kind.F if task.kind is Kind.F else Kind.B)
