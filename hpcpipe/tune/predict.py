"""What a step would take under another grouping: the simulator on what was measured, and what no order could beat.

Only plan's decisions and the measured numbers go in; it must not know who chooses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

import numpy as np

from hpcpipe.plan import Kind, Schedule, Task
from hpcpipe.plan.draws import uniform
from hpcpipe.simulate import CompiledSchedule
from hpcpipe.tune.candidates import Candidate, Pruned
from hpcpipe.tune.edges import fit_link
from hpcpipe.tune.grouping import Grouping
from hpcpipe.tune.meter import Report

Edge = tuple[int, int]
"""Source and target stage."""

Times = tuple[tuple[float, float], ...]
"""ns by stage of a forward and a backward. Plain numbers, for all ranks must round alike whatever their processor."""

SLOW_SHARE = 0.15
"""How many messages of an edge take its p90 in a simulated step, all others its median: what lies above the p85 or so,
so that both quantiles are kept."""


class Delays(NamedTuple):
    """What messages of an edge take: usually, and the slow ones (ns)."""

    usual: float
    slow: float


@dataclass(slots=True)
class Measured:
    """What the last steps have told, by micro-batch size; ns.

    Times of tasks do not depend on the network, so they are kept for all sizes that were seen; what messages take is
    forgotten where the network changes.
    """

    stages: int
    weight: float = 0.3
    """How much the newest step counts."""
    overhead: list[float] = field(default_factory=list)
    _tasks: dict[int, Times] = field(default_factory=dict)
    _edges: dict[Edge, dict[int, tuple[float, float, float]]] = field(default_factory=dict)

    def take(self, report: Report, microbatch_size: int) -> None:
        """Take a step that ran with micro-batches of this size."""
        now = list(zip(report.forward, report.backward, strict=True))
        past = self._tasks.get(microbatch_size, tuple(now))
        self._tasks[microbatch_size] = tuple(
            (self._blend(f, new_f), self._blend(b, new_b)) for (f, b), (new_f, new_b) in zip(past, now, strict=True)
        )
        self.overhead = list(map(self._blend, self.overhead or report.overhead, report.overhead))
        for edge, (usual, slow, size) in report.edges():
            seen = self._edges.setdefault(edge, {})
            before = seen.get(microbatch_size, (usual, slow, size))
            seen[microbatch_size] = self._blend(before[0], usual), self._blend(before[1], slow), size

    def _blend(self, past: float, new: float) -> float:
        return past + self.weight * (new - past)

    def forget_network(self) -> None:
        """Forget what messages took: the network is another one now."""
        self._edges.clear()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The micro-batch sizes that were seen, in their order."""
        return tuple(sorted(self._tasks))

    @property
    def known(self) -> bool:
        """Whether a step has been taken since the network changed."""
        return bool(self._tasks) and (bool(self._edges) or self.stages == 1)

    def durations(self, microbatch_size: int) -> Times:
        """Return what tasks take with micro-batches of a size, overhead included.

        Through two sizes or more that were seen goes a line, a part that does not grow and one that does, neither
        negative; one size alone is taken to grow in proportion.
        """
        if microbatch_size in self._tasks:
            times = self._tasks[microbatch_size]
        else:
            stages = range(self.stages)
            times = tuple((self._fitted(s, 0, microbatch_size), self._fitted(s, 1, microbatch_size)) for s in stages)
        return tuple((f + more, b + more) for (f, b), more in zip(times, self.overhead, strict=True))

    def _fitted(self, stage: int, kind: int, microbatch_size: int) -> float:
        seen = [(size, times[stage][kind]) for size, times in sorted(self._tasks.items())]
        x, y = fmean(size for size, _ in seen), fmean(ns for _, ns in seen)
        spread = sum((size - x) ** 2 for size, _ in seen)
        slope = sum((size - x) * (ns - y) for size, ns in seen) / spread if spread else y / x
        return y + min(max(slope, 0.0), y / x) * (microbatch_size - x)

    def delays(self, edge: Edge, microbatch_size: int) -> Delays:
        """Return what messages of an edge take with micro-batches of a size.

        Between and beyond sizes that were seen it is their latency and bandwidth; with one size seen a message is
        taken for latency alone, which a trial will show to be wrong where it is.
        """
        seen = self._edges.get(edge)
        if not seen:
            return Delays(0.0, 0.0)
        if microbatch_size in seen:
            usual, slow, _ = seen[microbatch_size]
            return Delays(usual, max(usual, slow))
        nearest = min(seen, key=lambda size: (abs(size - microbatch_size), size))
        usual, slow, num_bytes = seen[nearest]
        fit = fit_link([(size, ns) for ns, _, size in seen.values()])
        more = 0.0 if fit is None else fit.at(num_bytes * microbatch_size / nearest) - fit.at(num_bytes)
        return Delays(max(0.0, usual + more), max(0.0, usual + more, slow + more))


class Predictor:
    """Predicts steps of one pipeline.

    Parameters
    ----------
    base
        The schedule whose grouping is chosen.
    batch
        Samples of a step on a replica.
    """

    def __init__(self, base: Schedule, *, batch: int) -> None:
        self._base, self._batch = base, batch
        self._stages = base.placement.stages
        self._compiled: dict[Grouping, CompiledSchedule] = {}

    def step_ns(self, grouping: Grouping, measured: Measured) -> int:
        """Return the simulated time of a step under a grouping, from its first forward to its last backward (ns)."""
        compiled = self._compiled.get(grouping)
        if compiled is None:
            schedule = grouping.schedule(self._base, batch=self._batch)
            compiled = self._compiled[grouping] = CompiledSchedule(schedule)
        size = grouping.microbatch_size
        return compiled.run(np.array(_whole(measured.durations(size))), arrival=self._arrivals(measured, size)).step_ns

    def lower_bound(self, grouping: Grouping, measured: Measured) -> int:
        """Return what no order of these tasks can beat, whatever the network does (ns).

        Stage s begins when the first micro-batch has come through the stages before it, works on all of them, and then
        the last backward still has to go through those stages.
        """
        size, microbatches = grouping.microbatch_size, grouping.microbatches(self._batch)
        before = most = 0
        for forward, backward in _whole(measured.durations(size)):
            most = max(most, before + microbatches * (forward + backward))
            before += forward + backward
        return most

    def cost(self, grouping: Grouping) -> int:
        """Return how many messages and tasks a simulation has to go through."""
        return (4 * self._stages - 2) * grouping.microbatches(self._batch)

    def _arrivals(self, measured: Measured, size: int) -> Callable[[int, int, Task, int], int]:
        """Return when messages arrive that take their edge's usual time or, now and then, that of its slow ones.

        Messages of one edge keep their order, as those of one MPI communicator between two ranks do.
        """
        stages = range(self._stages - 1)
        edges = [edge for stage in stages for edge in ((stage, stage + 1), (stage + 1, stage))]
        delays = {edge: measured.delays(edge, size) for edge in edges}
        last = dict.fromkeys(edges, 0)

        def arrival(source: int, target: int, task: Task, now: int) -> int:
            edge = source, target
            usual, slow = delays[edge]
            took = slow if slow > usual and _is_slow(source, target, task.microbatch) else usual
            last[edge] = there = max(last[edge], now + round(took))
            return there

        return arrival


def predict_all(
    candidates: Sequence[Candidate], predictor: Predictor, measured: Measured, *, always: Candidate | None = None
) -> tuple[dict[Candidate, int], tuple[Pruned, ...]]:
    """Return what steps would take with the candidates that may be worth it (ns), in their order, and the others.

    A candidate is dominated by one before it, which needs no more memory, if even without a network no order of its
    tasks would be faster than that one is predicted with it. It is not simulated, unless it is `always` to be.
    """
    predicted: dict[Candidate, int] = {}
    pruned = []
    best: Candidate | None = None
    for candidate in candidates:
        if best is not None and candidate is not always:
            bound = predictor.lower_bound(candidate.grouping, measured)
            if bound >= predicted[best]:
                words = f"{best.grouping}, which takes {predicted[best] * 1e-6:.4g} ms with no more memory"
                least = f"even without a network this one would take {bound * 1e-6:.4g}"
                pruned.append(Pruned(candidate.grouping, f"dominated by {words}: {least}"))
                continue
        predicted[candidate] = predictor.step_ns(candidate.grouping, measured)
        if best is None or predicted[candidate] < predicted[best]:
            best = candidate
    return predicted, tuple(pruned)


def of_another_size(candidates: Sequence[Candidate], measured: Measured) -> list[Candidate]:
    """Return the candidates of the next size where only one has been seen, so that nobody knows how times grow.

    In proportion, as one size alone has it, larger micro-batches never pay; what does not grow with them shows in two.
    """
    if len(measured.sizes) != 1:
        return []
    seen = measured.sizes[0]
    others = {candidate.grouping.microbatch_size for candidate in candidates} - {seen}
    if not others:
        return []
    next_size = min(others, key=lambda size: (size < seen, abs(size - seen)))
    return [candidate for candidate in candidates if candidate.grouping.microbatch_size == next_size]


def _whole(times: Times) -> list[tuple[int, int]]:
    return [(round(forward), round(backward)) for forward, backward in times]


@lru_cache(maxsize=1 << 16)
def _is_slow(source: int, target: int, microbatch: int) -> bool:
    """Return whether a message is one of the slow ones; the same in every simulation, so that candidates compare."""
    return uniform(0, source, target, int(Kind.RECV), microbatch) < SLOW_SHARE
