"""One step in virtual time: discrete events around the runtime's own `StagePlan`s, one task at a time a stage.

It decides nothing: what runs next is the plan's choice, how long it takes and when messages arrive is given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from hpcpipe.plan import Kind, Schedule, StagePlan, Task, TimeClass

Duration = Callable[[int, Task], int]
"""(stage, task) -> ns."""

Arrival = Callable[[int, int, Task, int], int]
"""(source stage, target stage, task that the message feeds, when it is sent) -> when it arrives; ns."""


class Row(NamedTuple):
    """One task that ran on a stage, or a wait with its cause (then `task` is None); times in ns."""

    task: Task | None
    cause: TimeClass
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What happened; lists are by stage, peaks in chunk forwards."""

    step_ns: int
    rows: list[list[Row]]
    peak_in_flight: list[int]
    peak_stash: list[int]

    def classes(self, stage: int) -> dict[TimeClass, int]:
        """Return the ns of each class on a stage; they sum to `step_ns`."""
        sums: dict[TimeClass, int] = {}
        for row in self.rows[stage]:
            sums[row.cause] = sums.get(row.cause, 0) + row.end - row.start
        return sums

    @property
    def bubble_ratio(self) -> float:
        """Return 1 - useful / wall over all stages."""
        useful = sum(row.end - row.start for rows in self.rows for row in rows if row.task is not None)
        return 1.0 - useful / (self.step_ns * len(self.rows))


_CLASS = {Kind.F: TimeClass.FORWARD, Kind.B: TimeClass.BACKWARD, Kind.W: TimeClass.WEIGHT}


class _Stage:
    """One stage's plan, what it is doing, and what it did."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.rows: list[Row] = []
        self.busy = False
        self._idle: tuple[TimeClass, int] = TimeClass.WARMUP, 0

    def end_wait(self, now: int) -> None:
        cause, since = self._idle
        if now > since:
            self.rows.append(Row(None, cause, since, now))

    def wait(self, cause: TimeClass, now: int) -> None:
        if cause is not self._idle[0]:
            self.end_wait(now)
            self._idle = cause, now

    def ran(self, task: Task, start: int, end: int) -> None:
        self.rows.append(Row(task, _CLASS[task.kind], start, end))
        self._idle = TimeClass.RUNTIME, end


def simulate_step(schedule: Schedule, *, duration: Duration, arrival: Arrival) -> SimulatedStep:
    """Run one step from an empty pipeline until every stage is done.

    Raises
    ------
    RuntimeError
        Nothing can happen any more but tasks are left: the schedule dead-locks.
    """
    stages = [_Stage(schedule.stage_plan(stage)) for stage in range(schedule.placement.stages)]
    events: list[tuple[int, int, int, Task, int]] = []
    serial = 0

    def post(time: int, stage: int, task: Task, started: int) -> None:
        nonlocal serial
        serial += 1
        heappush(events, (time, serial, stage, task, started))

    def dispatch(number: int, now: int) -> None:
        stage = stages[number]
        if stage.busy or stage.plan.done:
            return
        choice = stage.plan.choose()
        if choice is None:
            stage.wait(stage.plan.idle(), now)
            return
        stage.end_wait(now)
        stage.plan.start(choice.task)
        stage.busy = True
        post(now + duration(number, choice.task), number, choice.task, now)

    for number, stage in enumerate(stages):
        stage.plan.begin(0)
        dispatch(number, 0)
    now = 0
    while events:
        now, _, number, task, started = heappop(events)
        stage = stages[number]
        if started < 0:
            stage.plan.deliver(task, now)
        else:
            stage.busy = False
            stage.ran(task, started, now)
            follower = stage.plan.follower(task) if task.kind in (Kind.F, Kind.B) else None
            stage.plan.finish(task, now)
            if follower is not None and follower[0] != number:
                post(arrival(number, *follower, now), *follower, -1)
        dispatch(number, now)
    return _result(stages, now)


def _result(stages: list[_Stage], end: int) -> SimulatedStep:
    stuck = [number for number, stage in enumerate(stages) if not stage.plan.done]
    if stuck:
        raise RuntimeError(f"the schedule dead-locks: stages {stuck} have tasks left and nothing can run")
    for stage in stages:
        stage.wait(TimeClass.DRAIN, stage.rows[-1].end)
        stage.end_wait(end)
    return SimulatedStep(
        step_ns=end,
        rows=[stage.rows for stage in stages],
        peak_in_flight=[stage.plan.flight.peak_in_flight for stage in stages],
        peak_stash=[stage.plan.flight.peak_stash for stage in stages],
    )
