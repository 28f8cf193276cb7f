"""A pipeline in virtual time that drives `StagePlan` objects: one task at a time a stage, a latency for every message.

For tests of plan/ only; it checks every dependency by itself and knows nothing of how the plan decides.
"""

from collections.abc import Callable
from heapq import heappop, heappush

from hpcpipe.plan import Kind, Limits, Placement, Schedule, StagePlan, Task, in_flight_caps, make_hint, make_policy

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
        stash: int | None = None,
        by_chunk: tuple[int, ...] | None = None,
        chunks: int = 1,
        shape: str = "round-robin",
        split: bool = False,
        ordered: bool = True,
        duration: Duration = lambda _stage, task: 1 if task.kind is Kind.F else 2,
        latency: Duration = lambda _stage, _task: 0,
        replicated: bool = False,
        buckets: int = 0,
    ) -> None:
        placement = Placement(stages, chunks, shape)
        self.caps = in_flight_caps(in_flight, stages=stages, microbatches=microbatches)
        fixed = dispatch == "fixed"
        plans = [
            StagePlan(
                placement=placement,
                stage=s,
                microbatches=microbatches,
                policy=make_policy(
                    dispatch, make_hint(hint, stage=s, stages=stages, microbatches=microbatches, chunks=chunks)
                ),
                limits=Limits() if fixed else Limits(self.caps[s] * chunks, stash, by_chunk),
                split=split,
                ordered=ordered,
                buckets=buckets,
                replicated=replicated,
            )
            for s in range(stages)
        ]
        self._prepare(plans, placement, split, ordered, duration, latency)

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        *,
        duration: Duration = lambda _stage, task: 1 if task.kind is Kind.F else 2,
        latency: Duration = lambda _stage, _task: 0,
        replicated: bool = False,
        buckets: int = 0,
    ) -> "VirtualPipeline":
        """Return the pipeline of a schedule."""
        stages = range(schedule.placement.stages)
        plans = [schedule.stage_plan(s, buckets=buckets, replicated=replicated) for s in stages]
        pipeline = cls.__new__(cls)
        pipeline._prepare(plans, schedule.placement, schedule.split, schedule.ordered, duration, latency)
        return pipeline

    def _prepare(
        self,
        plans: list[StagePlan],
        placement: Placement,
        split: bool,
        ordered: bool,
        duration: Duration,
        latency: Duration,
    ) -> None:
        self.stages = placement.stages
        self.placement = placement
        self.split = split
        self.ordered = ordered
        self.plans = plans
        self._duration = duration
        self._latency = latency
        self.order: list[list[Task]] = [[] for _ in plans]
        self.reasons: list[list] = [[] for _ in plans]
        self.finished: dict[tuple[int, Task], int] = {}
        self.arrived: dict[tuple[int, Task], int] = {}
        self.makespan = 0

    def run(self) -> "VirtualPipeline":
        """Run until nothing more can happen."""
        events: list[tuple[int, int, int, Task, str]] = []
        busy = [False] * self.stages

        def post(time: int, stage: int, task: Task, what: str) -> None:
            heappush(events, (time, len(self.finished) + len(self.arrived) + len(events), stage, task, what))

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
                post(time + self._duration(stage, task), stage, task, "done")
                busy[stage] = task.kind not in (Kind.RS, Kind.AG)

        for stage, plan in enumerate(self.plans):
            plan.begin(0)
            dispatch(stage, 0)
        while events:
            time, _, stage, task, what = heappop(events)
            self.makespan = time
            plan = self.plans[stage]
            if what == "arrive":
                self.arrived[stage, task] = time
                plan.deliver(task, time)
            else:
                if task.kind not in (Kind.RS, Kind.AG):
                    busy[stage] = False
                self.finished[stage, task] = time
                plan.finish(task, time)
                follower = plan.follower(task) if task.kind in (Kind.F, Kind.B) else None
                if follower is not None:
                    if follower[0] == stage:
                        self.arrived[follower] = time
                    else:
                        post(time + self._latency(stage, task), *follower, "arrive")
            dispatch(stage, time)
        return self

    @property
    def peaks(self) -> list[int]:
        """Chunk forwards in flight at the peak of each stage."""
        return [plan.flight.peak_in_flight for plan in self.plans]

    def _check_inputs(self, stage: int, task: Task, time: int) -> None:
        """Check by the model's own chain that what the task needs is there."""
        if task.kind not in (Kind.F, Kind.B, Kind.W):
            return
        virtual = self.placement.virtual(stage, task.chunk)
        if task.kind is Kind.W:
            assert self.finished[stage, task._replace(kind=Kind.B)] <= time
            if self.ordered and task.microbatch:
                assert self.finished[stage, task._replace(microbatch=task.microbatch - 1)] <= time
            return
        if task.kind is Kind.B:
            assert self.finished[stage, task._replace(kind=Kind.F)] <= time
        before = virtual - 1 if task.kind is Kind.F else virtual + 1
        if 0 <= before < self.placement.virtual_stages:
            owner, chunk = self.placement.owner(before)
            assert self.finished[owner, task._replace(chunk=chunk)] <= self.arrived[stage, task] <= time
