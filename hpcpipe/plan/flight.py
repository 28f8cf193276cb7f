"""What a stage has in flight, and which forwards its caps have room for.

Counts are in chunk forwards: one virtual stage's activations of one micro-batch. Two caps bound them, one on started
forwards minus finished backwards and one on started forwards minus finished weight gradients, which hold memory too.

A cap admits a forward while there is room for it and for what the oldest micro-batch, the first that this cap still
waits for, has yet to start here; the forwards of the oldest itself are always admitted. So that micro-batch can finish
on every stage whatever the others do, then the next one is the oldest, and no cap can stop the pipeline: neither chunks
that compete for room (RRFP, appendix C.2, completes micro-batches one by one under back-pressure) nor weight gradients
that wait for their order. With one chunk no cap is ever exceeded; with C chunks the excess is below C.
"""

from typing import NamedTuple

from hpcpipe.plan.task import Kind, Task


class Limits(NamedTuple):
    """Caps in chunk forwards; None is no cap."""

    in_flight: int | None = None
    stash: int | None = None


NO_LIMITS = Limits()


class _Count:
    """Started forwards that one cap still waits for."""

    def __init__(self, *, microbatches: int, chunks: int, limit: int | None) -> None:
        self._limit = limit
        self._to_start = [chunks] * microbatches
        self._to_finish = [chunks] * microbatches
        self.oldest = 0
        self.now = 0
        self.peak = 0

    @property
    def room(self) -> bool:
        """Whether a forward of any micro-batch may start."""
        if self._limit is None:
            return True
        reserved = self._to_start[self.oldest] if self.oldest < len(self._to_start) else 0
        return self.now + reserved < self._limit

    def start(self, microbatch: int) -> None:
        self._to_start[microbatch] -= 1
        self.now += 1
        self.peak = max(self.peak, self.now)

    def finish(self, microbatch: int) -> None:
        self._to_finish[microbatch] -= 1
        self.now -= 1
        while self.oldest < len(self._to_finish) and self._to_finish[self.oldest] == 0:
            self.oldest += 1


class Flight:
    """Counts one step's forwards, backwards and weight gradients on one stage."""

    def __init__(self, *, microbatches: int, chunks: int, split: bool, limits: Limits) -> None:
        self._in_flight = _Count(microbatches=microbatches, chunks=chunks, limit=limits.in_flight)
        self._stash = _Count(microbatches=microbatches, chunks=chunks, limit=limits.stash)
        self._last_kind = Kind.W if split else Kind.B

    @property
    def in_flight(self) -> int:
        """Return started forwards minus finished backwards."""
        return self._in_flight.now

    @property
    def stash(self) -> int:
        """Return started forwards minus finished weight gradients (backwards, where those are not split)."""
        return self._stash.now

    @property
    def peak_in_flight(self) -> int:
        """Return the most that were in flight."""
        return self._in_flight.peak

    @property
    def peak_stash(self) -> int:
        """Return the most that were stashed."""
        return self._stash.peak

    @property
    def room(self) -> bool:
        """Whether a forward of any micro-batch may start."""
        return self._in_flight.room and self._stash.room

    def admitted(self) -> tuple[int, ...]:
        """Return the micro-batches whose forwards may start although there is no room for all."""
        oldest = {self._in_flight.oldest, self._stash.oldest}
        return tuple(m for m in oldest if all(c.room or c.oldest == m for c in (self._in_flight, self._stash)))

    def start_forward(self, task: Task) -> None:
        """Count a forward that starts."""
        self._in_flight.start(task.microbatch)
        self._stash.start(task.microbatch)

    def finish(self, task: Task) -> None:
        """Count a backward or weight gradient that is done."""
        if task.kind is Kind.B:
            self._in_flight.finish(task.microbatch)
        if task.kind is self._last_kind:
            self._stash.finish(task.microbatch)
