"""The micro-batches of one replica, whatever they are made of: which samples, read ahead, and what the loss divides by.

It knows no format; a source turns sample numbers into tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from hpcpipe.data.order import Deal, Samples
from hpcpipe.data.prefetch import Prefetched
from hpcpipe.plan.by_step import ByStep

Count = Callable[[Any], float]
"""Targets of a micro-batch -> how many of them the loss counts."""


class Source(Protocol):
    """What samples are read from."""

    def __len__(self) -> int:
        """Return how many samples there are."""

    def read(self, samples: Samples) -> tuple[Any, Any]:
        """Return the inputs and targets of a micro-batch of these samples."""


class Counted(NamedTuple):
    """Targets and what the loss over them is divided by: what the whole step counts, on all replicas."""

    targets: Any
    total: float


class _Step(NamedTuple):
    microbatches: list[tuple[Any, Any]]
    total: float


class Batches:
    """Micro-batches of the steps of a training, read one step ahead.

    Parameters
    ----------
    steps
        Of the training; nothing is read beyond.
    count
        Where given, targets come as `Counted`. The total is the same on all replicas, because each reads the targets of
        all of them: the data is a function of the step.
    total
        Step -> what it counts, where that is known beforehand; then nobody reads the other replicas' targets. Called
        in the thread that reads ahead.
    """

    def __init__(
        self,
        source: Source,
        deal: Deal,
        *,
        steps: int,
        count: Count | None = None,
        total: Callable[[int], float] | None = None,
    ) -> None:
        self._source, self._deals = source, ByStep(deal)
        self._count, self._total = count, total
        self._ahead = Prefetched(self._read, steps=steps)
        self._step = _Step([], 0.0)

    def cut(self, step: int, *, microbatches: int, size: int) -> None:
        """Cut a replica's samples into other micro-batches from a step on, which has not been read ahead yet."""
        self._deals.change(step, self._deals.at(step).cut(microbatches=microbatches, size=size))

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready; waits only if the thread that reads ahead is not done with them."""
        self._step = self._ahead.take(step)

    def inputs(self, microbatch: int) -> Any:
        """Return the model's input."""
        return self._step.microbatches[microbatch][0]

    def targets(self, microbatch: int) -> Any:
        """Return what the loss compares with."""
        targets = self._step.microbatches[microbatch][1]
        return targets if self._count is None else Counted(targets, self._step.total)

    def _read(self, step: int) -> _Step:
        deal = self._deals.at(step)
        mine = [self._source.read(samples) for samples in deal.mine(step)]
        total = 0.0
        if self._total is not None:
            total = self._total(step)
        elif self._count is not None:
            total = sum(self._count(targets) for _, targets in mine)
            total += sum(self._count(self._source.read(samples)[1]) for samples in deal.others(step))
            if total <= 0:
                raise ValueError(f"no target of step {step} counts for the loss, on any replica")
        return _Step(mine, total)


class Evaluation:
    """One replica's micro-batches of an evaluation, the same every time; each is read when it is asked for.

    `inputs` and `targets` are asked for in turn, and the last micro-batch read is kept.
    """

    def __init__(self, source: Source, deal: Sequence[Samples], *, count: Count) -> None:
        self._source, self._deal = source, deal
        self._counts = count
        self._last: tuple[int, tuple[Any, Any]] | None = None

    def __len__(self) -> int:
        """Return how many micro-batches there are on this replica."""
        return len(self._deal)

    def inputs(self, microbatch: int) -> Any:
        """Return the model's input."""
        return self._pair(microbatch)[0]

    def targets(self, microbatch: int) -> Any:
        """Return what the loss compares with."""
        return self._pair(microbatch)[1]

    def count(self, microbatch: int) -> float:
        """Return how many targets the loss counts."""
        return self._counts(self._pair(microbatch)[1])

    def _pair(self, microbatch: int) -> tuple[Any, Any]:
        if self._last is None or self._last[0] != microbatch:
            self._last = microbatch, self._source.read(self._deal[microbatch])
        return self._last[1]


IGNORED = -100
"""The target that torch's losses ignore unless told otherwise."""


def counted_tokens(targets: torch.Tensor) -> float:
    """Return how many targets are not ignored."""
    return float((targets != IGNORED).sum())
