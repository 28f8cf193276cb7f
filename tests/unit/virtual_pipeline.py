"""A pipeline in virtual time that drives `StagePlan` objects: one task at a time a stage, a latency for every message.

For tests of plan/ only; it checks every dependency by itself and knows nothing of how the plan decides.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from hpcpipe.plan import Kind, StagePlan, Task, in_flight_caps, make_hint, make_policy

Duration = Callable[[int, Task], int]


class VirtualPipeline:
    """Runs one step and keeps what happened."""

    def __init__(
        self,
        *,
        stages: int,
        microbatches: int,
        hint: str,
        dispatch: str,
        in_flight: str | int | list[int] = "equal-memory",
        duration: Duration = lambda _stage, task: 1 if task.kind is Kind.F else 2,
        latency: Duration = lambda _stage, _task: 0,
        replicated: bool = False,
        buckets: int = 0,
    ) -> None:
        self.stages = stages
        self.caps = in_flight_caps(in_flight, stages=stages, microbatches=microbatches)
        self.plans = [
            StagePlan(
                first=s == 0,
                last=s == stages - 1,
                microbatches=microbatches,
                policy=make_policy(dispatch, make_hint(hint, stage=s, stages=stages, microbatches=microbatches)),
                cap=self.caps[s] if dispatch == "ready" else None,
                buckets=buckets,
                replicated=replicated,
            )
            for s in range(stages)
        ]
        self._duration = duration
        self._latency = latency
        self.order: list[list[Task]] = [[] for _ in range(stages)]
        self.reasons: list[list] = [[] for _ in range(stages)]
        self.ready_counts: list[list[int]] = [[] for _ in range(stages)]
        self.finished: dict[tuple[int, Task], int] = {}
        self.arrived: dict[tuple[int, Task], int] = {}
        self.makespan = 0

    def run(self) -> "VirtualPipeline":
        """Run until nothing more can happen."""
        events: list[tuple[int, int, int, Task | None, str]] = []
        serial = 0
        busy = [False] * self.stages

        def post(time: int, stage: int, task: Task, what: str) -> None:
            nonlocal serial
            serial += 1
            heappush(events, (time, serial, stage, task, what))

        def dispatch(stage: int, time: int) -> None:
            plan = self.plans[stage]
            while not busy[stage] and not plan.done:
                choice = plan.choose()
                if choice is None:
                    self.reasons[stage].append(plan.idle())
                    return
                task = choice.task
                self._check_inputs(stage, task, time)
                assert plan.start(task) <= time
                self.order[stage].append(task)
                self.ready_counts[stage].append(choice.ready_count)
                post(time + self._duration(stage, task), stage, task, "done")
                if task.kind in (Kind.RS, Kind.AG):
                    continue
                busy[stage] = True

        for stage, plan in enumerate(self.plans):
            plan.begin(0)
            dispatch(stage, 0)
        while events:
            time, _, stage, task, what = heappop(events)
            self.makespan = time
            if what == "arrive":
                self.arrived[stage, task] = time
                self.plans[stage].deliver(task, time)
            else:
                if task.kind not in (Kind.RS, Kind.AG):
                    busy[stage] = False
                self.finished[stage, task] = time
                self.plans[stage].finish(task, time)
                neighbour = stage + 1 if task.kind is Kind.F else stage - 1
                if task.kind in (Kind.F, Kind.B) and 0 <= neighbour < self.stages:
                    post(time + self._latency(stage, task), neighbour, task, "arrive")
            dispatch(stage, time)
        return self

    @property
    def peaks(self) -> list[int]:
        """Micro-batches in flight at the peak of each stage."""
        return [plan.peak_in_flight for plan in self.plans]

    def _check_inputs(self, stage: int, task: Task, time: int) -> None:
        if task.kind is Kind.F and stage > 0:
            assert self.arrived[stage, task] <= time
        if task.kind is Kind.B:
            assert self.finished[stage, Task(Kind.F, task.microbatch)] <= time
            if stage < self.stages - 1:
                assert self.arrived[stage, task] <= time
