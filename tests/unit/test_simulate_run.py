"""Simulated runs: steps without a barrier, optimizer tasks, agreement and shared links against sums made by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpipe.analyze import summarize
from hpcpipe.analyze.simulated import as_log
from hpcpipe.job import Job
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass
from hpcpipe.plan.hints import SPLIT
from hpcpipe.simulate import (
    Cut,
    Link,
    LinkMessages,
    Lognormal,
    MicrobatchCost,
    Network,
    Place,
    RecordedTimes,
    Scenario,
    UsualTimes,
    simulate_run,
    simulate_step,
)
from hpcpipe.simulate.admitted import AdmittedTimes
from hpcpipe.simulate.compiled import NotCompiledError
from hpcpipe.simulate.large_run import simulate_large_run

FORWARD, BACKWARD = 1000, 2000


def _scenario(stages, microbatches, *, hint="1f1b", dispatch="fixed", link=None, times=None, **more):
    schedule = Schedule(hint, dispatch, Placement(stages), microbatches, (Limits(),) * stages)
    if times is None:
        times = UsualTimes([FORWARD] * stages, [BACKWARD] * stages, [BACKWARD / 2] * stages)
    return Scenario(schedule, times, LinkMessages(link or Link()), **more)


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (4, 8), (3, 2)])
def test_every_step_of_a_quiet_run_takes_the_time_of_the_closed_form(stages, microbatches):
    run = simulate_run(_scenario(stages, microbatches), range(4))
    assert run.window_ns == [(microbatches + stages - 1) * (FORWARD + BACKWARD)] * 4


@settings(max_examples=50)
@given(
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    hint=st.sampled_from(["gpipe", "1f1b", "bf"]),
    sigma=st.sampled_from([0.0, 0.6]),
    latency=st.sampled_from([0.0, 300.0]),
    buckets=st.integers(0, 3),
    replicated=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_classes_of_a_run_sum_to_its_wall_time_and_the_report_of_its_log_agrees(
    stages, microbatches, hint, sigma, latency, buckets, replicated, seed
):
    times = UsualTimes(
        [FORWARD] * stages,
        [BACKWARD] * stages,
        [0] * stages,
        update=[70 * buckets] * stages,
        exchange=[400 * buckets] * stages,
        buckets=max(1, buckets),
        compute=Lognormal(sigma),
        seed=seed,
    )
    scenario = _scenario(
        stages,
        microbatches,
        hint=hint,
        dispatch="ready",
        link=Link(latency, 1.0),
        times=times,
        buckets=[buckets] * stages,
        replicated=replicated,
    )
    run = simulate_run(scenario, range(3))
    log = as_log(run, _job(stages, microbatches, hint))
    report = summarize(log)
    assert report.wall_ns == run.wall_ns
    assert report.bubble_ratio == pytest.approx(run.bubble_ratio, abs=1e-12)
    for stage in range(stages):
        mine = run.classes(stage)
        assert sum(mine.values()) == run.wall_ns
        theirs = report.ranks[stage].classes
        for cause in (TimeClass.FORWARD, TimeClass.BACKWARD, TimeClass.UPDATE, TimeClass.CAP, TimeClass.EXPOSED_COMM):
            assert mine.get(cause, 0) == theirs[cause]


def test_exchanges_take_turns_and_the_next_step_waits_for_the_gathers():
    """One stage, one micro-batch, two buckets: the first update hides behind the second sum."""
    reduce, update, gather = 500, 70, 500
    times = UsualTimes([FORWARD], [BACKWARD], [0], update=[2 * update], exchange=[2 * reduce], buckets=2)
    run = simulate_run(_scenario(1, 1, times=times, buckets=[2], replicated=True), range(2))
    first = FORWARD + BACKWARD + 2 * reduce + update
    assert run.window_ns == [first, 2 * gather + first]
    classes = run.classes(0)
    assert classes[TimeClass.UPDATE] == 2 * 2 * update
    assert classes[TimeClass.EXPOSED_COMM] == 2 * (2 * reduce - update) + 2 * gather


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_of_the_exchanges_of_a_stage_in_chunks_only_those_of_one_chunk_are_exposed_unless_all_wait_for_each_other(
    chunks,
):
    """In phases all is exposed; split, the sum of the first layers and the gather that the next step begins with."""
    exchange, steps, microbatches = 300, 5, 3
    times = UsualTimes(
        [FORWARD * chunks],
        [BACKWARD * chunks],
        [BACKWARD * chunks / 2],
        chunks=chunks,
        split=True,
        exchange=[exchange * chunks],
        buckets=chunks,
    )
    schedule = Schedule("critical", "ready", Placement(1, chunks, "v"), microbatches, (Limits(),), split=True)
    exposed = {}
    for phased in (True, False):
        scenario = Scenario(schedule, times, LinkMessages(Link()), [chunks], replicated=True, phased=phased)
        exposed[phased] = simulate_run(scenario, range(steps)).classes(0)[TimeClass.EXPOSED_COMM]
    assert exposed[True] == steps * 2 * chunks * exchange
    assert exposed[False] == steps * exchange + (steps - 1) * exchange  # nothing waits for the last step's gathers


@pytest.mark.parametrize("chunks", [6, 12])
def test_a_third_of_the_gathers_moves_into_gaps_between_the_sums_but_for_the_last_one(chunks):
    """A sum and a gather fit into a backward. What follows is the last sum, the other gathers and the last forward."""
    exchange, forward, backward = 10, 4, 20
    times = UsualTimes(
        [forward * chunks],
        [backward * chunks],
        [backward * chunks / 2],
        chunks=chunks,
        split=False,
        exchange=[exchange * chunks],
        buckets=chunks,
    )
    schedule = Schedule("bf", "ready", Placement(1, chunks), 1, (Limits(chunks),))
    for early, moved in ((False, 0), (True, chunks // 3 - 1)):
        more = {"replicated": True, "gathers_early": early}
        run = simulate_run(Scenario(schedule, times, LinkMessages(Link()), [chunks], **more), range(4))
        gathers = (chunks - moved) * exchange
        assert run.window_ns[1:] == [chunks * backward + exchange + gathers + forward] * 3


def test_the_compiled_simulator_refuses_early_gathers():
    scenario = Scenario(_scenario(1, 1).schedule, _scenario(1, 1).times, LinkMessages(Link()), gathers_early=True)
    with pytest.raises(NotCompiledError, match="use simulate_run"):
        simulate_large_run(scenario, range(1))


def test_agreement_delays_what_messages_ready_and_nothing_else():
    agreement = 40
    usual = simulate_run(_scenario(2, 1), range(1)).step_ns
    assert simulate_run(_scenario(2, 1, agreement_ns=agreement), range(1)).step_ns == usual + 2 * agreement
    assert simulate_run(_scenario(1, 5, agreement_ns=agreement), range(1)).step_ns == 5 * (FORWARD + BACKWARD)


def test_a_stage_begins_when_it_can_and_messages_wait_for_it():
    schedule = Schedule("1f1b", "fixed", Placement(2), 1, (Limits(),) * 2)
    step = simulate_step(
        schedule,
        duration=lambda _stage, task: FORWARD if task.kind is Kind.F else BACKWARD,
        arrival=lambda _source, _target, _task, now: now,
        begin=[100, 5000],
    )
    assert step.rows[1][0].start == 5000
    assert step.end == [5000 + FORWARD + 2 * BACKWARD, 5000 + FORWARD + BACKWARD]
    assert step.classes(0)[TimeClass.DEPENDENCY] == 5000 + FORWARD + BACKWARD - 100 - FORWARD


def test_both_directions_of_a_shared_link_wait_for_each_other():
    task = Task(Kind.F, 0)
    full, half = (Network(Link(num_bytes=100, ns_per_byte=1.0, duplex=duplex)) for duplex in (True, False))
    assert [full.arrival(0, 1, task, 0), full.arrival(1, 0, task, 0)] == [100, 100]
    assert [half.arrival(0, 1, task, 0), half.arrival(1, 0, task, 0)] == [100, 200]
    assert half.arrival(2, 1, task, 0) == 100


def test_recorded_times_are_shared_among_other_stages_chunks_and_halves():
    times = {
        Place(0, stage, Task(kind, 0)): ns
        for stage, forward, backward in ((0, 100, 240), (1, 300, 400))
        for kind, ns in ((Kind.F, forward), (Kind.B, backward))
    }
    times[Place(0, 1, Task(Kind.UPDATE, 0))] = 60

    def under(stages, chunks=1, split=False):
        return RecordedTimes(times, 1, Cut(2, 1, False), Cut(stages, chunks, split))

    same = under(2)
    assert [same.duration(0, stage, Task(Kind.F, 0)) for stage in (0, 1)] == [100, 300]
    assert same.duration(0, 0, Task(Kind.F, 5)) == 100, "micro-batches beyond the recorded ones repeat them"
    four = under(4)
    assert [four.duration(0, stage, Task(Kind.B, 0)) for stage in range(4)] == [120, 120, 200, 200]
    assert [four.duration(0, stage, Task(Kind.UPDATE, 0)) for stage in range(4)] == [0, 0, 30, 30]
    assert under(1).duration(0, 0, Task(Kind.F, 0)) == 400
    halves = under(2, chunks=2, split=True)
    assert [halves.duration(0, 1, Task(kind, 0, 1)) for kind in (Kind.F, Kind.B, Kind.W)] == [150, 100, 100]


def _job(stages, microbatches, hint):
    return Job.from_resolved(f"""
[job]
name = "hand-made"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
[parallel]
pipeline = {stages}
[batch]
microbatches = {microbatches}
[schedule]
hint = "{hint}"
""")


@settings(max_examples=40, deadline=None)
@given(
    stages=st.integers(1, 5),
    microbatches=st.integers(1, 8),
    hint=st.sampled_from(["gpipe", "1f1b", "zb-h1", "bfw"]),
    sigma=st.sampled_from([0.0, 0.6]),
    latency=st.sampled_from([0.0, 300.0]),
    buckets=st.integers(0, 2),
    replicated=st.booleans(),
    agreement=st.sampled_from([0, 25]),
)
def test_a_run_without_rows_says_the_same_as_one_with_them(
    stages, microbatches, hint, sigma, latency, buckets, replicated, agreement
):
    split = hint in SPLIT
    times = UsualTimes(
        [FORWARD] * stages,
        [BACKWARD] * stages,
        [700] * stages,
        split=split,
        update=[70 * buckets] * stages,
        exchange=[400 * buckets] * stages,
        buckets=max(1, buckets),
        compute=Lognormal(sigma),
        seed=3,
    )
    schedule = Schedule(hint, "ready", Placement(stages), microbatches, (Limits(),) * stages, split)
    link = LinkMessages(Link(latency, 1.0), 5)
    scenario = Scenario(schedule, times, link, [buckets] * stages, replicated, agreement)
    small, large = simulate_run(scenario, range(3)), simulate_large_run(scenario, range(3))
    assert large.window_ns == small.window_ns
    assert large.peak_stash == small.peak_stash
    assert large.peak_in_flight == small.peak_in_flight
    assert large.bubble_ratio == pytest.approx(small.bubble_ratio, abs=1e-12)
    for stage in range(stages):
        assert large.classes(stage) == small.classes(stage)


def test_a_large_run_under_admission_meets_the_draws_of_its_micro_batches():
    times = UsualTimes([FORWARD] * 3, [BACKWARD] * 3, [0.0] * 3, compute=MicrobatchCost(0.8))
    reverse = AdmittedTimes(times, lambda _step: tuple(reversed(range(6))))
    schedule = Schedule("1f1b", "fixed", Placement(3), 6, (Limits(),) * 3)
    scenario = Scenario(schedule, reverse, LinkMessages(Link()))
    assert simulate_large_run(scenario, range(2)).window_ns == simulate_run(scenario, range(2)).window_ns
