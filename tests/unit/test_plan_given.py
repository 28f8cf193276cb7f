"""Tasks given to a device behind others: devices with queues in virtual time, against the rules written by hand."""

import random
from collections import deque
from heapq import heappop, heappush

import pytest

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.hints import FAMILIES, SPLIT, placement_of

HINTS = ("1f1b", "bfw", "zb-h1", "zbv", "interleaved", "bf", "gpipe")


def _schedule(hint, dispatch, *, stages, microbatches):
    split = hint in SPLIT
    placement = placement_of(hint, stages=stages, chunks=FAMILIES[hint].chunks or 2) if hint in FAMILIES else None
    placement = placement or Placement(stages)
    limits = (Limits(),) * stages
    if dispatch == "ready":
        limits = limits_for(
            placement, hint=hint, microbatches=microbatches, split=split, in_flight="equal-memory",
            stash="equal-memory" if split else None, k=None,
        )  # fmt: skip
    return Schedule(hint, dispatch, placement, microbatches, limits, split=split)


class _Stage:
    """One stage with a device that has up to `ahead` tasks, and what was given and done there, in order."""

    def __init__(self, plan, ahead):
        self.plan, self.ahead = plan, ahead
        self.queue, self.given, self.done, self.free_at = deque(), [], [], 0
        self.most = 0
        plan.begin(0)

    def give(self, task, now):
        self.plan.start(task)
        self.given.append(task)
        self.queue.append(task)
        self.most = max(self.most, len(self.queue))
        self.plan.given(task, now)


def _run(schedule, ahead, draw):
    """Run a step; return the stages. Messages take as long as is drawn and leave when their task is done."""
    stages = [_Stage(schedule.stage_plan(s), ahead) for s in range(schedule.placement.stages)]
    events, serial = [], 0

    def at(time, *what):
        nonlocal serial
        serial += 1
        heappush(events, (time, serial, what))

    def fill(number, now):
        stage = stages[number]
        while len(stage.queue) < stage.ahead and (choice := stage.plan.choose()) is not None:
            stage.give(choice.task, now)
            stage.free_at = max(stage.free_at, now) + draw.randint(1, 20)
            at(stage.free_at, "done", number)
        if not stage.queue and not stage.plan.done:
            stage.plan.idle()

    for number in range(len(stages)):
        fill(number, 0)
    while events:
        now, _, what = heappop(events)
        if what[0] == "done":
            stage = stages[what[1]]
            task = stage.queue.popleft()
            stage.done.append(task)
            follower = stage.plan.follower(task) if task.kind in (Kind.F, Kind.B) else None
            if follower is not None and follower[0] != what[1]:
                at(now + draw.randint(0, 30), "message", *follower)
            stage.plan.finish(task, now)
            fill(what[1], now)
        else:
            stages[what[1]].plan.deliver(what[2], now)
            fill(what[1], now)
    return stages


@pytest.mark.parametrize("ahead", [1, 2, 4])
@pytest.mark.parametrize(
    ("hint", "dispatch"),
    [(hint, dispatch) for hint in HINTS for dispatch in ("ready", "fixed") if dispatch == "ready" or hint in FAMILIES],
)
def test_every_task_is_given_once_behind_all_that_it_needs(hint, dispatch, ahead):
    for seed in range(6):
        draw = random.Random(f"{hint}/{dispatch}/{ahead}/{seed}")
        count, microbatches = draw.choice([1, 2, 4]), draw.choice([4, 8])
        if hint == "interleaved":
            count = 2
        schedule = _schedule(hint, dispatch, stages=count, microbatches=microbatches)
        stages = _run(schedule, ahead, draw)
        kinds = (Kind.F, Kind.B, Kind.W) if schedule.split else (Kind.F, Kind.B)
        chunks = range(schedule.placement.chunks)
        every = {Task(kind, m, c) for kind in kinds for m in range(microbatches) for c in chunks}
        for stage in stages:
            assert stage.plan.done
            assert set(stage.given) == every and len(stage.given) == len(every)
            assert stage.given == stage.done, "a device that does tasks in order did not"
            assert stage.most <= ahead
            place = {task: index for index, task in enumerate(stage.given)}
            for task in every:
                if task.kind is not Kind.F:
                    assert place[Task(Kind(task.kind - 1), *task[1:])] < place[task]
                if task.kind is Kind.W and task.microbatch:
                    assert place[task._replace(microbatch=task.microbatch - 1)] < place[task], "sums out of order"


@pytest.mark.parametrize("ahead", [2, 4])
def test_caps_count_a_task_when_it_is_given(ahead):
    """The memory that a backward frees is free for what comes behind it, so what was given last is within the cap."""
    for seed in range(10):
        draw = random.Random(seed)
        schedule = _schedule("bfw", "ready", stages=4, microbatches=12)
        for number, stage in enumerate(_run(schedule, ahead, draw)):
            limits, in_flight, stash = schedule.limits[number], 0, 0
            for task in stage.given:
                in_flight += (task.kind is Kind.F) - (task.kind is Kind.B)
                stash += (task.kind is Kind.F) - (task.kind is Kind.W)
                assert in_flight <= limits.in_flight and stash <= limits.stash


def test_a_task_given_ahead_could_run_since_what_it_needs_was_done():
    plan = Schedule("1f1b", "ready", Placement(1), 2, (Limits(),)).stage_plan(0)
    forward, backward = Task(Kind.F, 0), Task(Kind.B, 0)
    plan.begin(5)
    assert plan.start(forward) == 5
    plan.given(forward, 10)
    ready_at = plan.start(backward)
    plan.given(backward, 11)
    plan.finish(forward, 100)
    assert plan.late(backward, ready_at) == 100
    assert plan.late(forward, 5) == 5


def test_buckets_wait_until_the_last_gradient_is_done_not_given():
    schedule = Schedule("1f1b", "ready", Placement(1), 1, (Limits(),))
    plan = schedule.stage_plan(0, buckets=[frozenset({0})], replicated=True)
    plan.begin(0)
    for task in (Task(Kind.F, 0), Task(Kind.B, 0)):
        plan.start(task)
        plan.given(task, 1)
    assert plan.ready == []
    plan.finish(Task(Kind.F, 0), 2)
    assert plan.ready == []
    plan.finish(Task(Kind.B, 0), 3)
    assert plan.ready == [Task(Kind.RS, 0)]


def test_a_fixed_order_is_given_in_its_order_without_waiting_for_ends():
    schedule = _schedule("1f1b", "fixed", stages=1, microbatches=3)
    plan = schedule.stage_plan(0)
    plan.begin(0)
    given = []
    while (choice := plan.choose()) is not None:
        plan.start(choice.task)
        plan.given(choice.task, 0)
        given.append(choice.task)
    assert tuple(given) == schedule.order(0)
