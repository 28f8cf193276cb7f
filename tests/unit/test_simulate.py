"""The simulator against closed forms, and its draws against the distributions they are named after."""

import statistics
from itertools import pairwise
from math import exp, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass, in_flight_caps
from hpcpipe.plan.delays import Bursts, LognormalDelay
from hpcpipe.plan.draws import normal, uniform
from hpcpipe.simulate import (
    HeavyTail,
    Jitter,
    Link,
    Lognormal,
    MicrobatchCost,
    Network,
    Steady,
    Straggler,
    simulate_step,
)
from hpcpipe.simulate.compiled_step import simulate_compiled

FORWARD, BACKWARD, WEIGHT = 1000, 1000, 1000
QUIET = Link()


def _schedule(stages, microbatches, hint, dispatch, in_flight="equal-memory", split=False):
    caps = in_flight_caps(in_flight, stages=stages, microbatches=microbatches)
    limits = tuple(Limits() if dispatch == "fixed" else Limits(cap) for cap in caps)
    return Schedule(hint, dispatch, Placement(stages), microbatches, limits, split)


def _simulate(schedule, link=QUIET, duration=None):
    network = Network(link)
    whole = BACKWARD if schedule.split else BACKWARD + WEIGHT
    usual = {Kind.F: FORWARD, Kind.B: whole, Kind.W: WEIGHT}
    return simulate_step(
        schedule, duration=duration or (lambda _stage, task: usual[task.kind]), arrival=network.arrival
    )


@pytest.mark.parametrize(("hint", "dispatch"), [("gpipe", "fixed"), ("1f1b", "fixed"), ("1f1b", "ready")])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 2), (4, 16), (8, 32), (3, 2)])
def test_without_variability_the_bubble_is_that_of_the_closed_form(hint, dispatch, stages, microbatches):
    step = _simulate(_schedule(stages, microbatches, hint, dispatch))
    assert step.step_ns == (microbatches + stages - 1) * 3 * FORWARD
    assert step.bubble_ratio == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_each_wait_of_a_quiet_1f1b_has_the_cause_and_length_known_from_its_drawing():
    """Stage s waits s forwards to begin, its last gradients come late, and it ends s backwards before stage 0."""
    stages = 4
    step = _simulate(_schedule(stages, 8, "1f1b", "fixed"))
    for stage in range(stages):
        classes = step.classes(stage)
        assert classes.get(TimeClass.WARMUP, 0) == stage * FORWARD
        assert classes.get(TimeClass.DRAIN, 0) == stage * (BACKWARD + WEIGHT)


@settings(max_examples=100)
@given(
    stages=st.integers(1, 8),
    microbatches=st.integers(1, 16),
    hint=st.sampled_from(["gpipe", "1f1b", "bf"]),
    fixed=st.booleans(),
    split=st.booleans(),
    sigma=st.sampled_from([0.0, 0.5, 2.0]),
    overtaking=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_classes_of_every_stage_sum_to_the_step(stages, microbatches, hint, fixed, split, sigma, overtaking, seed):
    fixed = fixed and hint != "bf"
    schedule = _schedule(stages, microbatches, hint, "fixed" if fixed else "ready", split=split and not fixed)
    model = Lognormal(0.6)
    network = Network(Link(100.0, sigma, overtaking, 1000, 0.05), seed)

    def duration(stage, task):
        return round(model.vary(1000.0, seed=seed, step=0, stage=stage, task=task))

    step = simulate_step(schedule, duration=duration, arrival=network.arrival)
    for stage in range(stages):
        classes = step.classes(stage)
        assert sum(classes.values()) == step.step_ns
        assert fixed or TimeClass.ORDER not in classes
        edges = [(row.start, row.end) for row in step.rows[stage]]
        assert all(a[1] == b[0] for a, b in pairwise(edges))
        useful = sum(duration(stage, row.task) for row in step.rows[stage] if row.task is not None)
        assert useful == sum(row.end - row.start for row in step.rows[stage] if row.task is not None)


def test_a_schedule_that_waits_for_itself_is_reported_and_not_waited_for():
    from hpcpipe.plan.policy import Fixed

    schedule = _schedule(2, 2, "1f1b", "fixed")
    backward_first = tuple(reversed([Task(Kind.F, 0), Task(Kind.B, 0), Task(Kind.F, 1), Task(Kind.B, 1)]))
    original = Fixed.__init__
    try:
        Fixed.__init__ = lambda self, order: (original(self, order), setattr(self, "_tasks", backward_first))[0]
        with pytest.raises(RuntimeError, match=r"stages \[0, 1\] have tasks left"):
            _simulate(schedule)
    finally:
        Fixed.__init__ = original


def test_a_message_waits_for_the_one_before_it_on_the_same_link_only():
    network = Network(Link(latency_ns=5.0, num_bytes=100, ns_per_byte=1.0))
    task = Task(Kind.F, 0)
    assert network.arrival(0, 1, task, 0) == 105
    assert network.arrival(0, 1, task, 10) == 205
    assert network.arrival(1, 0, task, 10) == 115
    assert network.arrival(0, 1, task, 1000) == 1105


def test_in_order_links_deliver_in_order_and_others_overtake():
    tasks = [Task(Kind.F, m) for m in range(200)]
    fifo, free = (Network(Link(1000.0, 2.0, overtaking), seed=1) for overtaking in (False, True))
    in_order = [fifo.arrival(0, 1, task, 10 * task.microbatch) for task in tasks]
    overtaking = [free.arrival(0, 1, task, 10 * task.microbatch) for task in tasks]
    assert in_order == sorted(in_order)
    assert overtaking != sorted(overtaking)
    assert all(a >= b for a, b in zip(in_order, overtaking, strict=True))


def _factors(model, count=20_000):
    return [model.vary(1.0, seed=3, step=0, stage=1, task=Task(Kind.F, m)) for m in range(count)]


def test_draws_are_uniform_and_normal():
    draws = [uniform(1, i) for i in range(20_000)]
    assert 0.0 < min(draws) < max(draws) < 1.0
    assert statistics.fmean(draws) == pytest.approx(0.5, abs=0.01)
    assert statistics.pvariance(draws) == pytest.approx(1 / 12, rel=0.03)
    normals = [normal(1, i) for i in range(20_000)]
    assert statistics.fmean(normals) == pytest.approx(0.0, abs=0.03)
    assert statistics.pstdev(normals) == pytest.approx(1.0, rel=0.02)
    assert sum(abs(z) < 1.96 for z in normals) / len(normals) == pytest.approx(0.95, abs=0.01)


def test_models_have_the_means_and_spreads_of_their_formulas():
    assert statistics.fmean(_factors(Lognormal(0.6))) == pytest.approx(1.0, rel=0.03)
    assert statistics.median(_factors(Lognormal(0.6))) == pytest.approx(exp(-0.18), rel=0.03)
    tail = _factors(HeavyTail(0.05, 10.0))
    assert statistics.fmean(tail) == pytest.approx(1.0, rel=0.05)
    assert sum(f > 1 for f in tail) / len(tail) == pytest.approx(0.05, rel=0.1)
    assert max(tail) / min(tail) == pytest.approx(10.0)
    jitter = _factors(Jitter(0.2, 2.0, 0.5))
    assert statistics.fmean(jitter) == pytest.approx(1.0 + 0.2 * 0.5 * 2.0, rel=0.02)
    assert min(jitter) == 1.0
    assert max(jitter) <= 1.0 + 0.5 * 2.0 * 1.5
    assert statistics.fmean(_factors(MicrobatchCost(0.8))) == pytest.approx(1.0, rel=0.05)


def test_models_vary_what_they_are_named_after():
    task = Task(Kind.F, 4)
    where = {"seed": 1, "step": 2}
    assert Steady().vary(3.0, stage=0, task=task, **where) == 3.0
    slow = Straggler(2, 1.5)
    assert [slow.vary(2.0, stage=s, task=task, **where) for s in range(4)] == [2.0, 2.0, 3.0, 2.0]
    cost = MicrobatchCost(0.8)
    assert len({cost.vary(1.0, stage=s, task=task, **where) for s in range(4)}) == 1
    assert cost.vary(1.0, stage=0, task=task, **where) == cost.factor(microbatch=4, **where)
    encoder = MicrobatchCost(0.8, stages=2)
    assert [encoder.vary(1.0, stage=s, task=task, **where) == 1.0 for s in range(4)] == [False, False, True, True]
    each = Lognormal(0.5)
    assert len({each.vary(1.0, stage=s, task=task, **where) for s in range(4)}) == 4
    split, whole = Task(Kind.W, 4), Task(Kind.B, 4)
    assert each.vary(1.0, stage=0, task=split, **where) == each.vary(1.0, stage=0, task=whole, **where)


def test_a_draw_depends_on_its_place_and_not_on_the_order_of_asking():
    model = Lognormal(0.5)
    places = [(stage, Task(kind, m)) for stage in range(3) for kind in (Kind.F, Kind.B) for m in range(5)]
    once = [model.vary(1.0, seed=9, step=1, stage=s, task=t) for s, t in places]
    again = [model.vary(1.0, seed=9, step=1, stage=s, task=t) for s, t in reversed(places)]
    assert once == again[::-1]
    assert len(set(once)) == len(once)
    assert once != [model.vary(1.0, seed=10, step=1, stage=s, task=t) for s, t in places]


def test_delays_have_the_median_and_spread_of_their_formula_and_depend_on_nothing_but_the_message():
    delay = LognormalDelay(2.0, 0.5)
    draws = [delay.of(0.0, seed=1, step=0, source=0, target=1, task=Task(Kind.F, m)) for m in range(20_000)]
    assert statistics.median(draws) == pytest.approx(2.0, rel=0.03)
    assert statistics.pstdev([log(d) for d in draws]) == pytest.approx(0.5, rel=0.02)
    where = {"seed": 1, "step": 0, "source": 0, "target": 1, "task": Task(Kind.F, 7)}
    assert delay.of(5.0, **where) == delay.of(99.0, **where) == draws[7]
    assert LognormalDelay(2.0).of(0.0, **where) == 2.0


def test_a_burst_slows_the_messages_that_are_sent_during_it():
    where = {"seed": 1, "step": 0, "source": 0, "target": 1, "task": Task(Kind.F, 7)}
    delays = [Bursts(1.0, every=10.0, length=3.0, factor=20.0).of(float(t), **where) for t in range(20)]
    assert delays == [20.0, 20.0, 20.0, *[1.0] * 7] * 2


@pytest.mark.parametrize("simulate", [simulate_step, simulate_compiled])
def test_with_a_norm_every_stage_updates_when_the_last_stage_has_its_gradients_and_all_know_it(simulate):
    stages, microbatches, forward, backward, update, norm = 4, 8, 100, 200, 50, 7
    schedule = Schedule("1f1b", "fixed", Placement(stages), microbatches, (Limits(),) * stages)
    took = {Kind.F: forward, Kind.B: backward, Kind.UPDATE: update}
    more = {"duration": lambda _stage, task: took.get(task.kind, 0), "arrival": lambda _s, _t, _task, now: now}
    whole = (microbatches + stages - 1) * (forward + backward)  # of 1F1B and of its first stage, which ends last
    ends = {}
    for norm_ns in (None, norm):
        step = simulate(schedule, buckets=[1] * stages, norm_ns=norm_ns, **more)
        ends[norm_ns] = step.end
    assert ends[None] == [whole - stage * backward + update for stage in range(stages)]
    assert ends[norm] == [whole + norm + update] * stages
    norms = [row for rows in step.beside for row in rows]
    assert [row.task for row in norms] == [Task(Kind.NORM, 0)] * stages
    assert {row.end for row in norms} == {whole + norm}


@pytest.mark.parametrize("simulate", [simulate_step, simulate_compiled])
def test_in_phases_a_step_takes_its_exchanges_one_after_the_other(simulate):
    schedule = Schedule("1f1b", "fixed", Placement(1), 2, (Limits(),))
    took = {Kind.F: 10, Kind.B: 20, Kind.RS: 100, Kind.UPDATE: 5, Kind.AG: 100}
    more = {"duration": lambda _stage, task: took.get(task.kind, 0), "arrival": lambda _s, _t, _task, now: now}
    split, phased = (simulate(schedule, buckets=[2], replicated=True, phased=each, **more) for each in (False, True))
    sums = 60 + 2 * 100
    assert split.end == [sums + 5]  # the other update hides behind the second sum
    assert split.gathered == [[sums + 5 + 2 * 100, sums + 5 + 100]]
    assert phased.end == [sums + 2 * 5 + 2 * 100]
