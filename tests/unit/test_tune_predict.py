"""Predicted steps against closed forms of kFkB, and the pruning against a brute force over all candidates."""

from math import ceil, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_training import kfkb

from hpcpipe.tune import EdgeTimes, Grouping, Measured, Predictor, Report, StageMemory, make_space
from hpcpipe.tune.predict import predict_all

F, B = 5_000, 10_000


def report(stages: int, *, delay: float = 0.0, forward: float = F, backward: float = B, size: int = 1, slow: float = 0):
    edge = EdgeTimes(delay, max(delay, slow), 100.0 * size)
    edges = (edge,) * (stages - 1)
    return Report(None, (forward,) * stages, (backward,) * stages, (0.0,) * stages, edges, edges)


def learnt(stages: int, *, size: int = 1, **times: float) -> Measured:
    measured = Measured(stages)
    measured.take(report(stages, size=size, **times), size)
    return measured


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_without_delays_every_group_takes_as_long_as_1f1b(stages: int, k: int) -> None:
    predictor = Predictor(kfkb(stages, 16), batch=16)
    assert predictor.step_ns(Grouping(k, 1), learnt(stages)) == (16 + stages - 1) * (F + B)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("delay", [500, 4_000, 9_000, 20_000])
def test_the_period_of_kfkb_over_slow_links_is_the_closed_form(stages: int, k: int, delay: int) -> None:
    # T(k) = max(F + B, max over d of ((d + k)(F + B) + 2dc) / (k(d + 1))), of groups that divide the batch.
    whole = F + B
    stalls = [((d + k) * whole + 2 * d * delay) / (k * (d + 1)) for d in range(1, stages)]
    period = max(whole, *stalls)
    cycle = k * lcm(*range(2, stages + 1))  # of groups, for every d
    few, many = cycle * ceil(48 / cycle), 2 * cycle * ceil(48 / cycle)
    base = kfkb(stages, many)
    steps = [Predictor(base, batch=batch).step_ns(Grouping(k, 1), learnt(stages, delay=delay)) for batch in (few, many)]
    assert steps[1] - steps[0] == pytest.approx((many - few) * period, rel=1e-9)


@pytest.mark.parametrize("delay", [100, 7_000, 7_500, 8_000, 15_000, 20_000])
def test_the_leanest_of_the_fastest_groups_is_the_smallest_that_does_not_stall(delay: int) -> None:
    stages, batch = 4, 48
    space = make_space(
        batch=batch, stages=stages, memory=[StageMemory(0, 1)] * stages, limit=None, dispatch="fixed", sizes=[1]
    )
    predictor, measured = Predictor(kfkb(stages, batch), batch=batch), learnt(stages, delay=delay)
    predicted = {c.grouping.k: predictor.step_ns(c.grouping, measured) for c in space.candidates}
    stall_free = (stages - 1) * (F + B + 2 * delay) + batch * (F + B)
    assert min(predicted.values()) == stall_free
    smallest = 1 + ceil(2 * delay / (F + B))  # k* of the closed form
    assert min(k for k, ns in predicted.items() if ns == stall_free) == min(k for k in predicted if k >= smallest)


uneven = st.lists(st.tuples(st.integers(1_000, 20_000), st.integers(1_000, 20_000)), min_size=2, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    times=uneven,
    overhead=st.integers(0, 3_000),
    delays=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 80_000)), min_size=6, max_size=6),
    dispatch=st.sampled_from(["fixed", "ready"]),
    batch=st.sampled_from([4, 6, 8, 12]),
)
def test_no_pruned_candidate_would_have_been_faster_or_leaner(
    times: list[tuple[int, int]], overhead: int, delays: list[tuple[int, int]], dispatch: str, batch: int
) -> None:
    stages = len(times)
    measured = Measured(stages)
    edges = [EdgeTimes(usual, max(usual, slow), 100.0) for usual, slow in delays]
    measured.take(
        Report(
            None,
            tuple(float(f) for f, _ in times),
            tuple(float(b) for _, b in times),
            (float(overhead),) * stages,
            tuple(edges[: stages - 1]),
            tuple(edges[3 : 2 + stages]),
        ),
        1,
    )
    space = make_space(batch=batch, stages=stages, memory=[StageMemory(7, 3)] * stages, limit=None, dispatch=dispatch)
    predictor = Predictor(kfkb(stages, batch, dispatch), batch=batch)
    truth = {c.grouping: predictor.step_ns(c.grouping, measured) for c in space.candidates}
    predicted, pruned = predict_all(space.candidates, predictor, measured)
    assert {c.grouping: ns for c, ns in predicted.items()} == {
        grouping: ns for grouping, ns in truth.items() if grouping not in {p.grouping for p in pruned}
    }
    best = min(predicted, key=lambda c: (predicted[c], c.memory))
    assert predicted[best] == min(truth.values())
    for each in pruned:
        assert truth[each.grouping] >= predicted[best]
        assert each.reason.startswith("dominated by k = ")
        named = [c for c in predicted if each.reason.startswith(f"dominated by {c.grouping}, which")]
        assert truth[each.grouping] >= min(predicted[c] for c in named)
        assert max(space.find(each.grouping).peak_bytes) >= min(max(c.peak_bytes) for c in named)


@settings(max_examples=60, deadline=None)
@given(
    times=uneven,
    delay=st.integers(0, 50_000),
    k=st.sampled_from([1, 2, 4]),
    dispatch=st.sampled_from(["fixed", "ready"]),
)
def test_no_step_beats_the_bound(times: list[tuple[int, int]], delay: int, k: int, dispatch: str) -> None:
    stages = len(times)
    measured = Measured(stages)
    edges = (EdgeTimes(delay, delay, 1.0),) * (stages - 1)
    forward, backward = (tuple(map(float, column)) for column in zip(*times, strict=True))
    measured.take(Report(None, forward, backward, (0.0,) * stages, edges, edges), 1)
    caps = tuple(8 for _ in range(stages)) if dispatch == "ready" else ()
    predictor, grouping = Predictor(kfkb(stages, 8, dispatch), batch=8), Grouping(k, 1, caps)
    bound = predictor.lower_bound(grouping, measured)
    assert predictor.step_ns(grouping, measured) >= bound
    slowest = max(range(stages), key=lambda s: sum(map(sum, times[:s])) + 8 * sum(times[s]))
    assert bound == sum(map(sum, times[:slowest])) + 8 * sum(times[slowest])


def test_two_sizes_tell_what_does_not_grow_with_the_micro_batch() -> None:
    measured = Measured(2)
    for size in (1, 4):
        measured.take(report(2, forward=300 + 100 * size, backward=50 + 200 * size, size=size), size)
    assert measured.durations(2) == ((500, 450), (500, 450))
    assert measured.durations(8) == ((1100, 1650), (1100, 1650))


def test_one_size_grows_in_proportion_but_for_the_runtime_s_own_work() -> None:
    measured = Measured(1)
    measured.take(Report(None, (100.0,), (200.0,), (7.0,), (), ()), 2)
    assert measured.durations(2) == ((107, 207),)
    assert measured.durations(6) == ((307, 607),)


def test_larger_micro_batches_that_seem_faster_are_not_believed_to_shrink_further() -> None:
    measured = Measured(1)
    measured.take(Report(None, (100.0,), (100.0,), (0.0,), (), ()), 1)
    measured.take(Report(None, (90.0,), (500.0,), (0.0,), (), ()), 2)
    forward, backward = measured.durations(4)[0]
    assert forward == 95  # their mean, whatever the size
    assert backward == 300 / 1.5 * 4  # in proportion: no negative part at size 0


def test_messages_of_two_sizes_tell_latency_and_bandwidth() -> None:
    measured = Measured(2)
    measured.take(report(2, delay=1_000 + 10 * 100, size=1), 1)
    measured.take(report(2, delay=1_000 + 10 * 200, size=2), 2)
    assert measured.delays((0, 1), 4).usual == pytest.approx(1_000 + 10 * 400)
    assert measured.delays((0, 1), 1).usual == 2_000


def test_what_an_edge_takes_is_forgotten_with_its_network_but_what_tasks_take_is_not() -> None:
    measured = learnt(2, delay=9_000)
    measured.forget_network()
    assert not measured.known
    assert measured.delays((0, 1), 1) == (0.0, 0.0)
    measured.take(report(2, delay=50.0), 1)
    assert measured.known
    assert measured.delays((0, 1), 1).usual == 50
    assert measured.durations(1) == ((F, B), (F, B))


def test_a_few_slow_messages_cost_1f1b_more_than_a_group_that_hides_them() -> None:
    measured = learnt(4, delay=100.0, slow=30_000.0)
    predictor = Predictor(kfkb(4, 32), batch=32)
    alone, grouped = (predictor.step_ns(Grouping(k, 1), measured) for k in (1, 4))
    quiet = predictor.step_ns(Grouping(1, 1), learnt(4, delay=100.0))
    assert quiet < grouped < alone
