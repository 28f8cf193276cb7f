"""How a step's batch is cut into micro-batches and grouped: one point of the choice that is tuned.

It must not know how good a grouping is, nor what it costs in memory.
"""

from dataclasses import dataclass, replace
from math import ceil

from hpcpipe.plan import Limits, Schedule


@dataclass(frozen=True, slots=True, order=True)
class Grouping:
    """kFkB's group and micro-batch (arXiv 2303.01675); the samples of a step are the same for all of them.

    Parameters
    ----------
    k
        Micro-batches of a group.
    microbatch_size
        Samples of a micro-batch.
    caps
        Where what is ready runs first: the most micro-batches that each stage may have in flight. Empty under a fixed
        order, which bounds itself by k(S - s).
    """

    k: int
    microbatch_size: int
    caps: tuple[int, ...] = ()

    def microbatches(self, batch: int) -> int:
        """Return the micro-batches of a step of `batch` samples on a replica.

        Raises
        ------
        ValueError
            They are no whole number.
        """
        if batch % self.microbatch_size:
            raise ValueError(f"micro-batches of {self.microbatch_size} do not divide {batch} samples")
        return batch // self.microbatch_size

    def in_flight(self, *, stages: int, batch: int) -> tuple[int, ...]:
        """Return the most micro-batches that each stage holds."""
        if self.caps:
            return self.caps
        return profile(stages, self.microbatches(batch), self.k)

    def schedule(self, base: Schedule, *, batch: int) -> Schedule:
        """Return the schedule with this grouping in place of its own; the hint must be kfkb, with one chunk a stage."""
        limits = tuple(Limits(cap) for cap in self.caps) or (Limits(),) * base.placement.stages
        return replace(base, k=self.k, microbatches=self.microbatches(batch), limits=limits)

    def __str__(self) -> str:
        words = f"k = {self.k}, b = {self.microbatch_size}"
        return f"{words}, {self.caps[0]} to {self.caps[-1]} in flight" if self.caps else words


def profile(stages: int, microbatches: int, k: int, factor: float = 1.0) -> tuple[int, ...]:
    """Return what kFkB holds on each stage at its peak, min(M, k(S - s)), or a multiple of k(S - s)."""
    return tuple(min(microbatches, ceil(factor * k * (stages - stage))) for stage in range(stages))
