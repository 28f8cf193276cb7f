"""Slices that see messages at different times still run one order, and wait less if they tell each other all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_pipeline import VirtualPipeline
from virtual_slices import VirtualSlices

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task
from hpcpipe.plan.agreement import Proposals, Window
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.hints import FAMILIES, SPLIT, placement_of

HINTS = ["bf", "bfw", "1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "critical"]


def _schedule(hint, stages, microbatches, in_flight="2x", ordered=True):
    placement = placement_of(hint, stages=stages, chunks=FAMILIES[hint].chunks or 2) if hint in FAMILIES else None
    placement = placement or Placement(stages)
    split = hint in SPLIT
    limits = limits_for(placement, hint=hint, microbatches=microbatches, split=split, in_flight=in_flight)
    return Schedule(hint, "ready", placement, microbatches, limits, split=split, ordered=ordered)


def _draw_latency(draws, _slice):
    return int(draws.expovariate(1 / 8))


def _draw_duration(draws, task):
    return draws.randint(5, 15) if task.kind is Kind.F else draws.randint(8, 25)


def _run(schedule, **more):
    return VirtualSlices(schedule, latency=_draw_latency, duration=_draw_duration, **more).run()


@settings(max_examples=30, deadline=None)
@given(
    hint=st.sampled_from(HINTS),
    stages=st.integers(1, 4),
    microbatches=st.integers(1, 12),
    slices=st.sampled_from([2, 3, 4]),
    rule=st.sampled_from(["common", "propose"]),
    in_flight=st.sampled_from(["1f1b", "2x", "equal-memory"]),
    ordered=st.booleans(),
    most_bytes=st.sampled_from([64, 2, 1]),
    fresh=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_delays_every_task_runs_once_in_one_order_on_all_slices(
    hint, stages, microbatches, slices, rule, in_flight, ordered, most_bytes, fresh, seed
):
    schedule = _schedule(hint, stages, microbatches, in_flight, ordered)
    pipeline = _run(schedule, slices=slices, rule=rule, seed=seed, most_bytes=most_bytes, fresh=fresh)
    assert pipeline.done
    kinds = (Kind.F, Kind.B, Kind.W) if schedule.split else (Kind.F, Kind.B)
    chunks = range(schedule.placement.chunks)
    wanted = {Task(kind, m, c) for kind in kinds for m in range(microbatches) for c in chunks}
    for stage, group in enumerate(pipeline.groups):
        assert len(group.order) == len(wanted)
        assert set(group.order) == wanted
        for plan in group.plans:
            cap = schedule.limits[stage].in_flight
            assert cap is None or plan.flight.peak_in_flight <= cap + schedule.placement.chunks
            assert plan.flight.in_flight == plan.flight.stash == 0


@pytest.mark.parametrize("hint", HINTS)
def test_where_nothing_varies_slices_run_what_one_rank_would_and_never_disagree(hint):
    """What will be ready at the end of a task is foreseen, so no decision needs a second round."""
    schedule = _schedule(hint, 3, 8, "1f1b")
    times = {Kind.F: 10, Kind.B: 20, Kind.W: 10}
    sliced = VirtualSlices(
        schedule,
        slices=2,
        latency=lambda _draws, _slice: 23,
        duration=lambda _draws, task: times[task.kind],
        fresh=True,
    ).run()
    whole = VirtualPipeline.of(
        schedule, duration=lambda _stage, task: times[task.kind], latency=lambda _stage, _task: 23
    ).run()
    assert sliced.makespan == whole.makespan
    assert {stage: set(group.order) for stage, group in enumerate(sliced.groups)} == {
        stage: set(order) for stage, order in enumerate(whole.order)
    }
    assert sliced.deferred == 0
    assert sliced.rounds == sum(len(group.order) for group in sliced.groups)


@pytest.mark.parametrize(
    ("hint", "slices", "fresh"), [("bf", 2, True), ("bfw", 4, False), ("1f1b", 2, False), ("zb-h1", 4, True)]
)
def test_telling_all_that_is_ready_defers_and_waits_less_than_proposing_one_task(hint, slices, fresh):
    """RRFP (arXiv 2605.18750, section 4.2) proposes one and defers where proposals differ."""
    schedule = _schedule(hint, 4, 24)
    deferred, wait = {}, {}
    for rule in ("common", "propose"):
        runs = [_run(schedule, slices=slices, rule=rule, seed=seed, fresh=fresh) for seed in range(3)]
        deferred[rule] = sum(run.deferred for run in runs)
        wait[rule] = sum(run.wait for run in runs)
    assert deferred["common"] < 0.8 * deferred["propose"]
    assert wait["common"] < 0.9 * wait["propose"]


def test_no_weight_gradient_is_run_while_all_slices_have_a_backward_although_they_were_asked_long_before():
    schedule = Schedule("bfw", "ready", Placement(3), 8, (Limits(),) * 3, split=True)
    for early, wanted in [(True, Task(Kind.B, 1)), (False, Task(Kind.W, 0))]:
        plans = [schedule.stage_plan(1) for _ in range(2)]
        sides = [Proposals(plan, "common", early=early) for plan in plans]
        for plan, side in zip(plans, sides, strict=True):
            for task in (Task(Kind.F, 0), Task(Kind.F, 1), Task(Kind.B, 0)):
                plan.deliver(task, 0)
                plan.start(task)
                side.start(task)
                if task.kind is Kind.F:
                    plan.finish(task, 1)
        asked = [side.bits(Task(Kind.B, 0)) for side in sides]  # while B0 runs only its weight gradient is foreseen
        for plan in plans:
            plan.deliver(Task(Kind.B, 1), 2)
            plan.finish(Task(Kind.B, 0), 3)
        choices = [side.choose(asked[0] & asked[1]) for side in sides]
        if early:
            assert choices == [None, None]
            fresh = sides[0].bits() & sides[1].bits()
            choices = [side.choose(fresh) for side in sides]
        assert [choice.task for choice in choices] == [wanted] * 2
        assert sides[0].counts.deferred == 0


def test_the_example_of_the_design_is_settled_in_one_round():
    """One slice has B1 and F4, the other F4 alone: proposing one defers, the common set is F4."""
    common, propose = (
        _two_slices(rule, first=[Task(Kind.B, 1), Task(Kind.F, 4)], second=[Task(Kind.F, 4)])
        for rule in ("common", "propose")
    )
    assert common == Task(Kind.F, 4)
    assert propose is None


def _two_slices(rule, *, first, second):
    schedule = Schedule("bf", "ready", Placement(3), 8, (Limits(),) * 3)
    plans = [schedule.stage_plan(1) for _ in range(2)]
    sides = [Proposals(plan, rule, early=False) for plan in plans]
    for m in (0, 1):  # both have run these forwards; the next half round is a backward's
        for plan, side in zip(plans, sides, strict=True):
            plan.deliver(Task(Kind.F, m), 0)
            plan.start(Task(Kind.F, m))
            side.start(Task(Kind.F, m))
            plan.finish(Task(Kind.F, m), 1)
    for plan, tasks in zip(plans, (first, second), strict=True):
        for task in tasks:
            plan.deliver(task, 2)
    common = sides[0].bits() & sides[1].bits()
    choices = [side.choose(common) for side in sides]
    assert choices[0] == choices[1]
    return None if choices[0] is None else choices[0].task


@pytest.mark.parametrize(("microbatches", "chunks", "split", "num_bytes"), [(8, 1, False, 8), (64, 2, True, 48)])
def test_a_proposal_takes_the_words_that_its_tasks_need(microbatches, chunks, split, num_bytes):
    window = Window(microbatches=microbatches, chunks=chunks, split=split)
    assert window.num_bytes == num_bytes
    kinds = (Kind.F, Kind.B, Kind.W) if split else (Kind.F, Kind.B)
    tasks = [Task(kind, m, c) for kind in kinds for c in range(chunks) for m in range(microbatches)]
    assert sorted(window.tasks(window.bits(tasks))) == sorted(tasks)
    assert len({window.bits([task]) for task in tasks}) == len(tasks)


def test_a_proposal_never_takes_more_than_64_bytes_and_the_window_moves_on():
    window = Window(microbatches=10_000, chunks=2, split=True)
    assert window.num_bytes <= 64
    share = 512 // 6
    late = Task(Kind.F, share, 0)
    assert window.bits([late]) == 0
    window.start(Task(Kind.F, 3, 0))
    assert window.tasks(window.bits([late, Task(Kind.B, 3, 0)])) == [late, Task(Kind.B, 3, 0)]
    window.start(Task(Kind.B, 3, 0))
    assert window.tasks(window.bits([Task(Kind.W, 3, 0)])) == [Task(Kind.W, 3, 0)]


def test_what_a_plan_foresees_is_what_is_ready_when_the_task_is_done():
    """Drives one rank through whole steps and compares, before each end of a task, with what is there behind it."""
    for hint in HINTS:
        schedule = _schedule(hint, 1, 6)
        plan = schedule.stage_plan(0)
        plan.begin(0)
        while plan.undecided:
            task = plan.choose().task
            plan.start(task)
            foreseen = sorted(plan.offers(task))
            plan.finish(task, 1)
            assert sorted(plan.offers()) == foreseen, (hint, task)
