"""What a stage has in flight, and which forwards its caps have room for.

Counts are in chunk forwards: one virtual stage's activations of one micro-batch. Two caps bound them, one on started
forwards minus finished backwards and one on started forwards minus finished weight gradients, which hold memory too.

With one chunk a cap admits a forward while there is room, and no cap of at least 1 can stop the pipeline (RRFP,
appendix C.4). Let n_B(s) count finished backwards of stage s. Gradients flow backwards, so n_B(s) <= n_B(s+1), and a
strict inequality means that stage s has a ready backward, which no cap forbids. So in a stuck state all n_B are
equal. The last stage has a ready backward whenever n_F > n_B, so there n_F = n_B. If some stage s has n_F(s) >
n_F(s+1), take the last such one: stage s+1 has n_F = n_B, so its cap has room, and it has a ready forward: not stuck.
Hence all counts are equal, and stage 0 admits the next micro-batch or the step is over. Weight gradients in any order
only add tasks that can run.

Chunks that compete for one cap break that argument; caps by chunk do not: each virtual stage then has a cap of its
own, and the argument holds along the chain of virtual stages. Under a cap for all chunks together the forwards of the
oldest micro-batch, the first that the cap still waits for, are always admitted: it can finish on every stage whatever
the others do, then the next one is the oldest (the paper, appendix C.2, completes micro-batches one by one under
back-pressure).

Two kinds of caps that close for different reasons need more. Weight gradients that keep a fixed order hold the stash
until those before them are done; then a stage whose in-flight cap is full of younger micro-batches, which a smaller
stash further on does not take because they came before the oldest, would never start the oldest. A cap for all chunks
beside caps by chunk is alike. In both cases every cap keeps room for what the oldest has yet to start, so again it can
finish whatever the others do. So with one chunk, and with caps by chunk, no cap is ever exceeded; a cap for C chunks
together is by C at most.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

from hpcpipe.plan.task import Kind, Task


class Limits(NamedTuple):
    """Caps in chunk forwards; None is no cap.

    `in_flight` (started forwards minus backwards) and `stash` (minus weight gradients) bound all chunks of a stage
    together, `in_flight_by_chunk` and `stash_by_chunk` each by itself. Where one stage has both kinds, all must.
    """

    in_flight: int | None = None
    stash: int | None = None
    stash_by_chunk: tuple[int, ...] | None = None
    in_flight_by_chunk: tuple[int, ...] | None = None

    @property
    def both_kinds(self) -> bool:
        """Whether there are caps for all chunks together beside caps by chunk."""
        together = self.in_flight is not None or self.stash is not None
        return together and (self.in_flight_by_chunk is not None or self.stash_by_chunk is not None)


NO_LIMITS = Limits()


class _Count:
    """Started forwards that one cap still waits for."""

    def __init__(self, *, microbatches: int, chunks: int, limit: int | None, reserves: bool) -> None:
        self.limit = limit
        self._reserves = reserves
        self.favours_oldest = reserves or chunks > 1
        self._to_start = [chunks] * microbatches
        self._to_finish = [chunks] * microbatches
        self.oldest = 0
        self.now = 0
        self.peak = 0

    @property
    def room(self) -> bool:
        """Whether a forward of any micro-batch may start."""
        if self.limit is None:
            return True
        reserved = self._to_start[self.oldest] if self._reserves and self.oldest < len(self._to_start) else 0
        return self.now + reserved < self.limit

    def admits(self, microbatch: int) -> bool:
        """Return whether a forward of this micro-batch may start."""
        return self.room or (self.favours_oldest and microbatch == self.oldest)

    def start(self, microbatch: int) -> None:
        self._to_start[microbatch] -= 1
        self.now += 1
        self.peak = max(self.peak, self.now)

    def finish(self, microbatch: int) -> None:
        self._to_finish[microbatch] -= 1
        self.now -= 1
        while self.oldest < len(self._to_finish) and self._to_finish[self.oldest] == 0:
            self.oldest += 1

    def take_back(self, microbatch: int, now: int, oldest: int) -> None:
        """Undo a `finish` that was only supposed."""
        self._to_finish[microbatch] += 1
        self.now, self.oldest = now, oldest


class Flight:
    """Counts one step's forwards, backwards and weight gradients on one stage.

    `split`: weight gradients are tasks of their own; `ordered`: each waits for that of the micro-batch before.
    """

    def __init__(self, *, microbatches: int, chunks: int, split: bool, ordered: bool, limits: Limits) -> None:
        reserves = (split and ordered) or limits.both_kinds

        def each(by_chunk: tuple[int, ...] | None) -> list[_Count]:
            return [
                _Count(microbatches=microbatches, chunks=1, limit=limit, reserves=reserves)
                for limit in by_chunk or (None,) * chunks
            ]

        self._in_flight = _Count(microbatches=microbatches, chunks=chunks, limit=limits.in_flight, reserves=reserves)
        self._stash = _Count(microbatches=microbatches, chunks=chunks, limit=limits.stash, reserves=reserves)
        self._in_flight_by_chunk = each(limits.in_flight_by_chunk)
        self._stash_by_chunk = each(limits.stash_by_chunk)
        self._last_kind = Kind.W if split else Kind.B
        self._counts = [
            (self._in_flight, self._stash, self._in_flight_by_chunk[chunk], self._stash_by_chunk[chunk])
            for chunk in range(chunks)
        ]
        self._caps = [[count for count in counts if count.limit is not None] for counts in self._counts]

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

    def room(self, chunk: int) -> bool:
        """Return whether a forward of any micro-batch may start in a chunk."""
        for cap in self._caps[chunk]:  # noqa: SIM110 - a generator costs more than the caps
            if not cap.room:
                return False
        return True

    def admitted(self, chunk: int) -> tuple[int, ...]:
        """Return the micro-batches whose forwards may start in a chunk although there is no room for all."""
        caps = self._caps[chunk]
        return tuple(m for m in {cap.oldest for cap in caps} if all(cap.admits(m) for cap in caps))

    def start_forward(self, task: Task) -> None:
        """Count a forward that starts."""
        for count in self._counts[task.chunk]:
            count.start(task.microbatch)

    def finish(self, task: Task) -> None:
        """Count a backward or weight gradient that is done."""
        for count in self._ended_by(task):
            count.finish(task.microbatch)

    @contextmanager
    def supposing(self, running: Task) -> Iterator[None]:
        """Look at the counts as they will be when a task that runs is done; whatever kind it is of."""
        counts = self._ended_by(running)
        before = [(count.now, count.oldest) for count in counts]
        for count in counts:
            count.finish(running.microbatch)
        try:
            yield
        finally:
            for count, (now, oldest) in zip(counts, before, strict=True):
                count.take_back(running.microbatch, now, oldest)

    def _ended_by(self, task: Task) -> list[_Count]:
        counts = []
        if task.kind is Kind.B:
            counts += [self._in_flight, self._in_flight_by_chunk[task.chunk]]
        if task.kind is self._last_kind:
            counts += [self._stash, self._stash_by_chunk[task.chunk]]
        return counts


def chunk_profile(*, stage: int, stages: int, scale: float = 1.0) -> tuple[int, int]:
    """Return caps by chunk for two chunks in a V: ZBV's own peaks, 2S - 1 - s and s + 1, times `scale`.

    Together they are 2S chunk forwards on every stage, the memory of 1F1B on its first (arXiv 2401.10241, section 6).
    """
    return ceil(scale * (2 * stages - 1 - stage)), ceil(scale * (stage + 1))
