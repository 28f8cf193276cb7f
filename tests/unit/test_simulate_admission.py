"""Orders found by simulation: fast times against the events, the search against brute force, `auto` on the rows."""

from itertools import permutations
from random import Random

import pytest
from flow_shop import makespan
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, in_flight_caps, make_hint
from hpcpipe.plan.admission import admission_order
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.simulate import Link, MicrobatchCost, Network, simulate_step
from hpcpipe.simulate.admission import StashLimit, auto_admission, search_order, weighted_peaks
from hpcpipe.simulate.orders import OrderedStep


def _fixed(hint, stages, count):
    placement = placement_of(hint, stages=stages)
    return Schedule(hint, "fixed", placement, count, (Limits(),) * stages, split=hint in SPLIT)


def _ready(hint, stages, count):
    caps = in_flight_caps("equal-memory", stages=stages, microbatches=count)
    limits = tuple(Limits(cap, stages if hint in SPLIT else None) for cap in caps)
    return Schedule(hint, "ready", Placement(stages), count, limits, split=hint in SPLIT, ordered=False)


def _orders(schedule):
    placement = schedule.placement
    return [
        make_hint(
            schedule.hint,
            stage=stage,
            stages=placement.stages,
            microbatches=schedule.microbatches,
            chunks=placement.chunks,
        ).tasks
        for stage in range(placement.stages)
    ]


def _by_events(schedule, duration, order, latency):
    def of_place(stage, task):
        return duration(stage, task._replace(microbatch=order[task.microbatch]))

    return simulate_step(schedule, duration=of_place, arrival=Network(Link(latency)).arrival)


def _proportional(schedule, costs, *, stages=None):
    whole = {Kind.F: 1, Kind.B: 1 if schedule.split else 2, Kind.W: 1}

    def duration(stage, task):
        varies = stages is None or stage < stages
        return whole[task.kind] * (costs[task.microbatch] if varies else 1000) // schedule.placement.chunks

    return duration


@settings(max_examples=60, deadline=None)
@given(
    hint=st.sampled_from(["gpipe", "1f1b", "zb-h1", "zbv"]),
    stages=st.integers(1, 5),
    count=st.integers(1, 9),
    latency=st.sampled_from([0, 3, 40]),
    seed=st.integers(0, 2**32),
)
def test_the_fast_times_and_peaks_are_those_of_the_events(hint, stages, count, latency, seed):
    schedule, random = _fixed(hint, stages, count), Random(seed)
    drawn = {}

    def duration(stage, task):
        return drawn.setdefault((stage, task), random.randint(1, 30))

    ordered = OrderedStep(_orders(schedule), placement=schedule.placement, latency=latency)
    admissions = [random.sample(range(count), count) for _ in range(3)]
    weights = [random.randint(1, 50) for _ in range(count)]
    times = ordered.times(ordered.durations(duration, count), admissions)
    peaks = ordered.peak_stash(weights, admissions)
    for order, time, peak in zip(admissions, times, peaks, strict=True):
        step = _by_events(schedule, duration, order, latency)
        assert step.step_ns == time
        assert max(weighted_peaks(step, [weights[index] for index in order])) == peak


def test_orders_that_wait_in_a_circle_or_for_nobody_are_refused():
    first = (Task(Kind.F, 0), Task(Kind.B, 0))
    with pytest.raises(ValueError, match="wait for each other in a circle"):
        OrderedStep([first[::-1], first], placement=Placement(2))
    with pytest.raises(ValueError, match="F0 of stage 1 needs F0 of stage 0, which is in no order"):
        OrderedStep([(), first], placement=Placement(2))


def test_weighted_peaks_count_each_microbatch_until_its_last_gradient():
    """One stage of GPipe stashes all; two stages of 1F1B on two micro-batches stash both first and one last."""
    schedule = _fixed("gpipe", 1, 3)
    step = _by_events(schedule, lambda _stage, _task: 1, (0, 1, 2), 0)
    assert weighted_peaks(step, [5, 7, 9]) == [21]
    schedule = _fixed("1f1b", 2, 2)
    step = _by_events(schedule, lambda _stage, _task: 1, (0, 1), 0)
    assert weighted_peaks(step, [5, 7]) == [12, 7]


def test_the_search_ends_where_no_insertion_and_no_swap_is_better():
    random = Random(5)
    optimal = 0
    for _ in range(20):
        jobs = [(random.randint(1, 9), random.randint(1, 9)) for _ in range(5)]

        def evaluate(orders, jobs=jobs):
            return [makespan(jobs, order) for order in orders]

        order, cost = search_order(evaluate, range(5), costs=[sum(job) for job in jobs], evaluations=10_000)
        near = []
        for first, second in permutations(range(5), 2):
            inserted, swapped = list(order), list(order)
            inserted.insert(second, inserted.pop(first))
            swapped[first], swapped[second] = swapped[second], swapped[first]
            near += [inserted, swapped]
        assert makespan(jobs, order) == cost <= min(evaluate(near))
        optimal += cost == min(evaluate(list(permutations(range(5)))))
    assert optimal >= 15


def test_the_search_keeps_to_its_budget():
    asked = []

    def evaluate(orders):
        asked.extend(orders)
        return [-len(asked) - place for place in range(len(orders))]  # each looks better than all before

    search_order(evaluate, range(12), costs=range(12), evaluations=100)
    assert 70 < len(asked) <= 101


@pytest.mark.parametrize("encoder", [None, 1])
@pytest.mark.parametrize("make", [_fixed, _ready])
@pytest.mark.parametrize("hint", ["1f1b", "zb-h1"])
def test_auto_beats_the_pyramid_and_is_never_slower_than_as_given(make, hint, encoder):
    """Where costs vary on all stages it is at least the pyramid, with an encoder at least as given; simulated."""
    schedule, latency = make(hint, 4, 12), 50
    for seed in range(3):
        model = MicrobatchCost(0.8)
        costs = [round(1000 * model.factor(seed=seed, step=0, microbatch=m)) for m in range(12)]
        duration = _proportional(schedule, costs, stages=encoder)
        found = auto_admission(schedule, duration=duration, latency=latency, evaluations=600)
        assert sorted(found.order) == list(range(12))
        time = _by_events(schedule, duration, found.order, latency).step_ns
        given_time = _by_events(schedule, duration, range(12), latency).step_ns
        assert (found.step, found.step_as_given) == (time, given_time)
        assert time <= given_time
        if encoder is None:
            pyramid = _by_events(schedule, duration, admission_order("pyramid", costs), latency).step_ns
            assert time <= pyramid < given_time


def test_auto_from_predictions_that_are_wrong_by_a_fifth_loses_less_than_a_hundredth_to_as_given():
    for hint, make in (("1f1b", _fixed), ("zb-h1", _fixed), ("zbv", _fixed), ("bfw", _ready)):
        schedule = make(hint, 4, 12)
        for seed in range(3):
            random = Random(seed)
            costs = [round(1000 * random.lognormvariate(0.0, 0.8)) for _ in range(12)]
            guessed = [round(cost * random.lognormvariate(0.0, 0.2)) for cost in costs]
            found = auto_admission(
                schedule, duration=_proportional(schedule, guessed), latency=50, evaluations=300, rounds=1
            )
            real = _proportional(schedule, costs)
            time = _by_events(schedule, real, found.order, 50).step_ns
            assert time <= 1.01 * _by_events(schedule, real, range(12), 50).step_ns


@pytest.mark.parametrize(("make", "hint"), [(_fixed, "1f1b"), (_fixed, "zbv"), (_ready, "bf"), (_ready, "bfw")])
def test_without_predicted_differences_auto_changes_nothing(make, hint):
    schedule = make(hint, 3, 6)
    found = auto_admission(schedule, duration=_proportional(schedule, [1000] * 6), latency=7)
    assert found.order == tuple(range(6))
    assert found.step == found.step_as_given


def test_orders_from_a_file_are_searched_as_they_are():
    usual = _fixed("1f1b", 3, 6)
    schedule = Schedule("file:x", "fixed", Placement(3), 6, (Limits(),) * 3, orders=tuple(_orders(usual)))
    duration = _proportional(usual, [3000, 1000, 4000, 1000, 5000, 900])
    assert auto_admission(schedule, duration=duration) == auto_admission(usual, duration=duration)


def test_a_gain_that_is_too_small_is_left_alone():
    schedule = _fixed("1f1b", 3, 6)
    duration = _proportional(schedule, [3000, 1000, 4000, 1000, 5000, 900])
    eager = auto_admission(schedule, duration=duration)
    assert eager.step < eager.step_as_given
    assert auto_admission(schedule, duration=duration, least_gain=0.9).order == tuple(range(6))


@pytest.mark.parametrize(("make", "hint"), [(_fixed, "zb-h1"), (_ready, "zb-h1"), (_ready, "bfw")])
def test_auto_keeps_the_stash_of_as_given_where_that_is_the_limit(make, hint):
    schedule = make(hint, 4, 12)
    costs = [round(1000 * MicrobatchCost(0.8).factor(seed=1, step=0, microbatch=m)) for m in range(12)]
    duration = _proportional(schedule, costs)
    most = max(weighted_peaks(_by_events(schedule, duration, range(12), 0), costs))
    free = auto_admission(schedule, duration=duration)
    bound = auto_admission(schedule, duration=duration, limit=StashLimit(tuple(costs), most))
    step = _by_events(schedule, duration, bound.order, 0)
    assert max(weighted_peaks(step, [costs[index] for index in bound.order])) == bound.stash <= most
    assert free.stash is None
    assert free.step <= bound.step <= bound.step_as_given


def test_a_limit_that_nothing_keeps_gives_an_order_that_stashes_less_than_as_given_and_says_how_much():
    schedule = _fixed("1f1b", 3, 6)
    costs = [1000, 1000, 1000, 9000, 9000, 9000]
    duration = _proportional(schedule, costs)
    found = auto_admission(schedule, duration=duration, limit=StashLimit(tuple(costs), 1))
    assert 1 < found.stash < max(weighted_peaks(_by_events(schedule, duration, range(6), 0), costs))


def test_the_simulator_of_ready_steps_can_be_another():
    schedule = _ready("bfw", 3, 6)
    duration = _proportional(schedule, [3000, 1000, 4000, 1000, 5000, 900])
    asked = []

    def simulate(order):
        asked.append(order)
        return _by_events(schedule, duration, order, 0)

    found = auto_admission(schedule, duration=duration, simulate=simulate)
    assert found == auto_admission(schedule, duration=duration)
    assert found.order in asked
    assert len(asked) == len(set(asked))
