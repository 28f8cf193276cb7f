"""One step in virtual time: discrete events around the runtime's own `StagePlan`s, one task at a time a stage.

It decides nothing: what runs next is the plan's choice, how long it takes and when messages arrive is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from hpcpipe.plan import Exchanges, Kind, Schedule, StagePlan, Task, TimeClass, early_gathers

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


class Message(NamedTuple):
    """What one stage sent to another, and the task that it feeds there; times in ns."""

    source: int
    target: int
    task: Task
    sent: int
    arrived: int


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What happened; lists but `messages` are by stage, peaks in chunk forwards, times in ns.

    A stage's `rows` cover its time from `begin` to the end of the step without a gap; `beside` holds the
    reduce-scatters and all-gathers, which take turns but no time of the stage. `end` is when a stage was done,
    all-gathers apart: they end at `gathered`, by bucket.
    """

    begin: list[int]
    end: list[int]
    rows: list[list[Row]]
    beside: list[list[Row]]
    messages: list[Message]
    peak_in_flight: list[int]
    peak_stash: list[int]
    gathered: list[list[int]]

    @property
    def step_ns(self) -> int:
        """Return the time from the first stage's begin until every stage is done."""
        return max(self.end) - min(self.begin)

    def classes(self, stage: int) -> dict[TimeClass, int]:
        """Return the ns of each class on a stage; they sum to its time from its begin to the step's end."""
        sums: dict[TimeClass, int] = {}
        for row in self.rows[stage]:
            sums[row.cause] = sums.get(row.cause, 0) + row.end - row.start
        return sums

    @property
    def bubble_ratio(self) -> float:
        """Return 1 - useful / wall over all stages."""
        useful = sum(row.end - row.start for rows in self.rows for row in rows if row.task is not None)
        return 1.0 - useful / sum(max(self.end) - begin for begin in self.begin)


_CLASS = {
    Kind.F: TimeClass.FORWARD,
    Kind.B: TimeClass.BACKWARD,
    Kind.W: TimeClass.WEIGHT,
    Kind.UPDATE: TimeClass.UPDATE,
    Kind.RS: TimeClass.EXPOSED_COMM,
    Kind.AG: TimeClass.EXPOSED_COMM,
    Kind.NORM: TimeClass.EXPOSED_COMM,
}
_BESIDE = (Kind.RS, Kind.AG, Kind.NORM)


class _Stage:
    """One stage's plan, what it is doing, and what it did."""

    def __init__(
        self, plan: StagePlan, begin: int, gathered: Sequence[int], phased: bool, early: Sequence[int] = ()
    ) -> None:
        self.plan = plan
        self.exchanges = Exchanges(range(len(gathered)), at_once=1, early=early)
        self.link_free = max(gathered, default=0)
        self._phased = phased
        self.gathered = list(gathered)
        self.begin = begin
        self.end = begin
        self.rows: list[Row] = []
        self.beside: list[Row] = []
        self.busy = False
        self._idle: tuple[TimeClass, int] = TimeClass.WARMUP, begin

    def end_wait(self, now: int) -> None:
        cause, since = self._idle
        if now > since:
            self.rows.append(Row(None, cause, since, now))
        self._idle = TimeClass.RUNTIME, now

    def wait(self, cause: TimeClass, now: int) -> None:
        if cause is not self._idle[0]:
            self.end_wait(now)
            self._idle = cause, now

    def ran(self, task: Task, start: int, end: int) -> None:
        if task.kind in _BESIDE:
            self.beside.append(Row(task, _CLASS[task.kind], start, end))
        else:
            self.rows.append(Row(task, _CLASS[task.kind], start, end))
            self._idle = TimeClass.RUNTIME, end
        if task.kind is Kind.AG:
            self.gathered[task.microbatch] = end
        if task.kind is not Kind.AG or self._phased:
            self.end = end


def simulate_step(
    schedule: Schedule,
    *,
    duration: Duration,
    arrival: Arrival,
    begin: Sequence[int] | None = None,
    buckets: Sequence[int] | None = None,
    replicated: bool = False,
    gathered: Sequence[Sequence[int]] | None = None,
    phased: bool = False,
    norm_ns: int | None = None,
    agreement_ns: int = 0,
    gathers_early: bool = False,
) -> SimulatedStep:
    """Run one step from an empty pipeline until every stage is done.

    Parameters
    ----------
    begin
        When each stage can begin (ns), where it still works on the step before.
    buckets
        How many fusion buckets each stage has, spread over its chunks; each is updated, between a reduce-scatter and an
        all-gather where the stages are `replicated`. Their durations are asked of `duration` too.
    gathered
        When the all-gathers of the step before end (ns), by stage and bucket; forwards wait for theirs.
    phased
        As in `StagePlan`.
    norm_ns
        Where updates wait for a norm over all stages: what passes from the last one's coming until all know it.
    agreement_ns
        What passes between the arrival of a message and the moment when the tensor-parallel ranks of a stage agree that
        its task can run; what follows on the same stage needs no agreement.
    gathers_early
        Whether a part of the buckets, all taken as of one size, is updated and gathered between the reduce-scatters. A
        reduce-scatter then waits for a gather that is under way, where the real ones share the network.

    Raises
    ------
    RuntimeError
        Nothing can happen any more but tasks are left: the schedule dead-locks.
    """
    count = schedule.placement.stages
    begins = list(begin) if begin is not None else [0] * count
    counts = list(buckets) if buckets is not None else [0] * count
    before = gathered if gathered is not None else [[0] * each for each in counts]
    early = [early_gathers([1.0] * each) if gathers_early else [] for each in counts]
    late = [[b for b, time in enumerate(before[stage]) if time > begins[stage]] for stage in range(count)]
    stages = [
        _Stage(
            schedule.stage_plan(
                stage,
                buckets=counts[stage],
                replicated=replicated,
                gathering=late[stage],
                norm=norm_ns is not None,
                phased=phased,
                eager=early[stage],
            ),
            begins[stage],
            before[stage],
            phased,
            early[stage],
        )
        for stage in range(count)
    ]
    events: list[tuple[int, int, int, Task | None, int]] = []
    messages: list[Message] = []
    met: dict[int, int] = {}
    serial = 0

    def post(time: int, stage: int, task: Task | None, started: int) -> None:
        nonlocal serial
        serial += 1
        heappush(events, (time, serial, stage, task, started))

    def meet(number: int, now: int) -> None:
        """Let a stage come to the norm; the last one that comes lets it end for all."""
        met[number] = now
        if len(met) == count:
            assert norm_ns is not None
            for other in range(count):
                post(now + norm_ns, other, Task(Kind.NORM, 0), met[other])

    def exchange(number: int, tasks: Sequence[Task], now: int) -> None:
        for task in tasks:
            start = max(now, stages[number].link_free)
            stages[number].link_free = start + duration(number, task)
            post(stages[number].link_free, number, task, start)

    def dispatch(number: int, now: int) -> None:
        stage = stages[number]
        while not stage.busy and not stage.plan.done:
            choice = stage.plan.choose()
            if choice is None:
                stage.wait(stage.plan.idle(), now)
                return
            stage.end_wait(now)
            stage.plan.start(choice.task)
            if choice.task.kind is Kind.NORM:
                meet(number, now)
                continue
            if choice.task.kind in _BESIDE:
                exchange(number, stage.exchanges.ask(choice.task), now)
            else:
                stage.busy = True
                post(now + duration(number, choice.task), number, choice.task, now)

    for number in range(count):
        post(begins[number], number, None, _BEGINS)
        for bucket in late[number]:
            post(before[number][bucket], number, Task(Kind.AG, bucket), _ARRIVES)
    while events:
        now, _, number, task, started = heappop(events)
        stage = stages[number]
        if task is None:
            stage.plan.begin(now)
        elif started < 0 and task.kind is Kind.AG:
            stage.plan.gathered(task.microbatch, now)
        elif started < 0:
            stage.plan.deliver(task, now)
        else:
            stage.busy = stage.busy and task.kind in _BESIDE
            stage.ran(task, started, now)
            follower = stage.plan.follower(task) if task.kind in (Kind.F, Kind.B) else None
            stage.plan.finish(task, now)
            if task.kind in (Kind.RS, Kind.AG):
                exchange(number, stage.exchanges.end(task), now)
            if follower is not None and follower[0] != number:
                there = arrival(number, *follower, now)
                messages.append(Message(number, *follower, now, there))
                post(max(there + agreement_ns, begins[follower[0]]), *follower, _ARRIVES)
        dispatch(number, now)
    return _result(stages, messages)


_BEGINS, _ARRIVES = -2, -1
"""Stand in an event where a finished task has its start."""


def _result(stages: list[_Stage], messages: list[Message]) -> SimulatedStep:
    stuck = [number for number, stage in enumerate(stages) if not stage.plan.done]
    if stuck:
        raise RuntimeError(f"the schedule dead-locks: stages {stuck} have tasks left and nothing can run")
    last = max(stage.end for stage in stages)
    for stage in stages:
        stage.wait(TimeClass.DRAIN, stage.end)
        stage.end_wait(last)
    return SimulatedStep(
        begin=[stage.begin for stage in stages],
        end=[stage.end for stage in stages],
        rows=[stage.rows for stage in stages],
        beside=[stage.beside for stage in stages],
        messages=messages,
        peak_in_flight=[stage.plan.flight.peak_in_flight for stage in stages],
        peak_stash=[stage.plan.flight.peak_stash for stage in stages],
        gathered=[stage.gathered for stage in stages],
    )
