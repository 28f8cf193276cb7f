"""A training in virtual time, for tests of the choice of the grouping: stages that take their time, links that delay.

Steps are those of the simulator under the true times; what ranks learn of them goes through meters, as in a run.
"""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from hpcpipe.plan import FLAG_BACKWARD, Kind, Limits, Placement, Schedule
from hpcpipe.simulate import CompiledSchedule
from hpcpipe.tune import Chooser, Decision, Grouping, Meter, Settings, Space, StageMemory, make_space

MS = 1_000_000
Delay = Callable[[int, int, int, int], float]
"""(step, source, target, micro-batch) -> ms"""


def kfkb(stages: int, microbatches: int, dispatch: str = "fixed") -> Schedule:
    limits = tuple(Limits(None if dispatch == "fixed" else stages - stage) for stage in range(stages))
    return Schedule("kfkb", dispatch, Placement(stages), microbatches, limits, k=1)


class Training:
    """One training; `delays` and `forward_ms` (of one sample; a backward takes twice that) are the truth."""

    def __init__(
        self,
        *,
        stages: int = 4,
        batch: int = 16,
        dispatch: str = "fixed",
        forward_ms: float = 1.0,
        fixed_ms: float = 0.0,
        delay: Delay = lambda *_: 0.0,
        limit: int | None = None,
        sizes: tuple[int, ...] | None = (1,),
        settings: Settings = Settings(interval=8, trial=3),  # noqa: B008 - frozen
        start: Grouping | None = None,
    ) -> None:
        self.stages, self.batch, self.dispatch = stages, batch, dispatch
        self.forward_ms, self.fixed_ms, self.delay = forward_ms, fixed_ms, delay
        self.memory = [StageMemory(0.0, 1.0)] * stages
        self.space: Space = make_space(
            batch=batch, stages=stages, memory=self.memory, limit=limit, dispatch=dispatch, sizes=sizes
        )
        self.base = kfkb(stages, batch, dispatch)
        start = start or self.space.candidates[0].grouping
        self.chooser = Chooser(self.space, base=self.base, batch=batch, start=start, settings=settings)
        same_clock = dict.fromkeys(range(stages), 0)
        places = [SimpleNamespace(pipeline=stages, stage=stage, slice=0) for stage in range(stages)]
        self.meters = [Meter(place=place, clock_shifts=same_clock) for place in places]
        self.ran: list[Grouping] = []
        self.step_ms: list[float] = []
        self.decisions: list[Decision] = []
        self._sums: list[float] | None = None

    def truth(self, step: int, grouping: Grouping):
        """Return the step as it would be under a grouping."""
        compiled = CompiledSchedule(grouping.schedule(self.base, batch=self.batch))
        each = self.fixed_ms + self.forward_ms * grouping.microbatch_size
        last: dict[tuple[int, int], int] = {}

        def arrival(source: int, target: int, task, now: int) -> int:
            there = now + round(self.delay(step, source, target, task.microbatch) * MS)
            last[source, target] = there = max(there, last.get((source, target), 0))
            return there

        durations = np.array([[round(each * MS), round(2 * each * MS)]])
        return compiled, compiled.run(durations, arrival=arrival, rows=True)

    def run(self, steps: int) -> None:
        """Go on for some steps, the sums of each known one step later."""
        for _ in range(steps):
            step = len(self.ran)
            grouping = self.chooser.grouping(step)
            self.ran.append(grouping)
            compiled, result = self.truth(step, grouping)
            self.step_ms.append(result.step_ns / MS)
            sums = self._measure(compiled, result)
            if self._sums is not None:
                decision = self.chooser.take(step - 1, self._sums)
                self.decisions += [] if decision is None else [decision]
            self._sums = sums

    def _measure(self, compiled: CompiledSchedule, result) -> list[float]:
        sums = [0.0] * self.meters[0].entries
        for source, target, code, sent, arrived in result.messages[["source", "target", "code", "sent", "arrived"]]:
            task = compiled.task(code)
            flags = FLAG_BACKWARD * (task.kind is Kind.B)
            self.meters[target].measure(Kind.RECV, 0, int(sent), 0, int(arrived), int(source), 100, flags)
        for stage, rows in enumerate(result.rows):
            for start, end, code, _ in rows.tolist():
                if code >= 0:
                    self.meters[stage].measure(compiled.task(code).kind, 0, start, start, end, -1, 0, 0)
        for meter in self.meters:
            sums = [a + b for a, b in zip(sums, meter.row(int(result.step_ns)), strict=True)]
        return sums

    def best(self, step: int) -> tuple[float, Grouping]:
        """Return the fastest grouping of a step in hindsight, with its ms."""
        return min((self.truth(step, c.grouping)[1].step_ns / MS, c.grouping) for c in self.space.candidates)
