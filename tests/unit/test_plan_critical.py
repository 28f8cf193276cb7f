"""The hint `critical` against a graph library, closed forms of the papers, and the plan's promises under any timing."""

from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_clock import clock

from hpcpipe.plan import (
    Kind,
    Limits,
    Placement,
    Profile,
    Schedule,
    Task,
    check_order,
    chunk_profile,
    in_flight_caps,
    make_hint,
    remaining_paths,
    start_times,
    step_time,
)
from hpcpipe.plan.draws import uniform
from hpcpipe.plan.hints import ORDERS
from hpcpipe.plan.hints.critical import critical, critical_hint
from hpcpipe.plan.hints.list_schedule import list_schedule
from hpcpipe.simulate import simulate_step

LANES_OF_V = [(Kind.B, 0), (Kind.F, 1), (Kind.F, 0), (Kind.B, 1)]


def drawn_profile(seed, stages, chunks, most, delay):
    def draw(*where):
        return 1 + int(uniform(seed, *where) * most)

    return Profile(
        tuple(tuple(tuple(draw(s, k, c) for c in range(chunks)) for k in range(3)) for s in range(stages)), delay
    )


def orders_of(profile, microbatches, make=critical):
    size = {"stages": profile.stages, "microbatches": microbatches, "chunks": profile.chunks}
    return [make(stage=s, profile=profile, **size) for s in range(profile.stages)]


profiles = st.builds(
    drawn_profile,
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 9),
    chunks=st.integers(1, 2),
    most=st.sampled_from([1, 3, 50]),
    delay=st.integers(0, 60),
)


def graph(orders, placement, profile):
    """Return the step as a graph: an edge says how much later its head may start; `end` follows everything."""
    found = nx.DiGraph()
    last = placement.virtual_stages - 1

    def add(stage, task, head_stage, head):
        delay = profile.delay if head_stage != stage else 0
        found.add_edge(
            (stage, task), (head_stage, head), weight=profile.durations[stage][task.kind][task.chunk] + delay
        )

    for stage, order in enumerate(orders):
        for before, after in pairwise(order):
            add(stage, before, stage, after)
        for task in order:
            found.add_edge((stage, task), "end", weight=profile.durations[stage][task.kind][task.chunk])
            virtual = placement.virtual(stage, task.chunk)
            if task.kind is Kind.F and virtual < last:
                owner, chunk = placement.owner(virtual + 1)
                add(stage, task, owner, Task(Kind.F, task.microbatch, chunk))
            elif task.kind is Kind.F:
                add(stage, task, stage, Task(Kind.B, task.microbatch, task.chunk))
            elif task.kind is Kind.B:
                add(stage, task, stage, Task(Kind.W, task.microbatch, task.chunk))
                if virtual > 0:
                    owner, chunk = placement.owner(virtual - 1)
                    add(stage, task, owner, Task(Kind.B, task.microbatch, chunk))
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 4),
    chunks=st.integers(1, 2),
    microbatches=st.integers(1, 4),
    delay=st.integers(0, 30),
)
def test_remaining_paths_are_the_longest_paths_of_the_graph(seed, stages, chunks, microbatches, delay):
    profile = drawn_profile(seed, stages, chunks, 20, delay)
    placement = Placement(stages, chunks, "v")
    name = "zbv" if chunks == 2 else "zb-h1"
    orders = [ORDERS[name](stage=s, stages=stages, microbatches=microbatches) for s in range(stages)]
    whole = graph(orders, placement, profile)
    starts = start_times(orders, placement, profile)
    for stage, paths in enumerate(remaining_paths(orders, placement, profile)):
        for task, path in paths.items():
            behind = whole.subgraph([(stage, task), *nx.descendants(whole, (stage, task))])
            before = whole.subgraph([(stage, task), *nx.ancestors(whole, (stage, task))])
            assert path == nx.dag_longest_path_length(behind)
            assert starts[stage][task] == nx.dag_longest_path_length(before)
    assert step_time(orders, placement, profile) == nx.dag_longest_path_length(whole)


def test_remaining_paths_follow_messages_and_not_only_the_order_of_a_stage():
    """One micro-batch on two stages, F = 3 and 5, B = 7 and 11, W = 13 and 17, delay 1: small enough to add by hand."""
    profile = Profile((((3,), (7,), (13,)), ((5,), (11,), (17,))), delay=1)
    f, b, w = (Task(kind, 0) for kind in (Kind.F, Kind.B, Kind.W))
    first, second = remaining_paths([[f, b, w], [f, b, w]], Placement(2), profile)
    assert first == {w: 13, b: 20, f: 3 + 1 + 5 + 11 + 1 + 20}
    assert second == {w: 17, b: 11 + 1 + 20, f: 5 + 11 + 1 + 20}


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 6), (4, 16), (8, 32)])
def test_without_variability_critical_takes_the_time_of_the_best_order_of_its_memory(stages, microbatches):
    """ZB-H1: M(F + B + W) + (S - 1)(F + B - W); ZBV with F = B = W = t a chunk: 6Mt + (S - 1)t."""
    one, two = (orders_of(Profile.uniform(stages=stages, chunks=chunks, ns=2), microbatches) for chunks in (1, 2))
    assert clock(one, Placement(stages), times=(2, 2, 2)).makespan == 2 * (3 * microbatches + stages - 1)
    assert clock(two, Placement(stages, 2, "v"), times=(1, 1, 1)).makespan == 6 * microbatches + stages - 1


@settings(max_examples=60, deadline=None)
@given(profile=profiles, microbatches=st.integers(1, 24))
def test_critical_is_complete_executable_and_within_the_memory_of_1f1b(profile, microbatches):
    placement = Placement(profile.stages, profile.chunks, "v")
    orders = orders_of(profile, microbatches)
    peaks = check_order(orders, placement=placement, microbatches=microbatches, split=True)
    assert max(peaks.stash) <= profile.stages * profile.chunks
    known = "zbv" if profile.chunks == 2 else "zb-h1"
    literature = [
        ORDERS[known](stage=s, stages=profile.stages, microbatches=microbatches) for s in range(profile.stages)
    ]
    assert step_time(orders, placement, profile) <= step_time(literature, placement, profile)


@settings(max_examples=100, deadline=None)
@given(
    profile=profiles,
    microbatches=st.integers(1, 24),
    lanes=st.permutations(LANES_OF_V),
    patience=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    narrow=st.integers(1, 4),
)
def test_list_scheduling_ends_within_its_room_whatever_the_times_and_the_ranking(
    profile, microbatches, lanes, patience, narrow
):
    placement = Placement(profile.stages, profile.chunks, "v")
    room = [tuple(narrow + c for c in range(profile.chunks))] * profile.stages
    lanes = [lane for lane in lanes if lane[1] < profile.chunks]

    def run():
        return list_schedule(profile, placement, microbatches=microbatches, room=room, lanes=lanes, patience=patience)

    orders = run()
    assert orders == run()
    peaks = check_order(orders, placement=placement, microbatches=microbatches, split=True)
    assert max(peaks.stash) <= room[0][-1]


def test_where_messages_take_as_long_as_a_forward_critical_is_shorter_than_zbv():
    profile = Profile.uniform(stages=8, chunks=2, ns=1000, delay=1000)
    placement = Placement(8, 2, "v")
    zbv = [ORDERS["zbv"](stage=s, stages=8, microbatches=32) for s in range(8)]
    found = clock(orders_of(profile, 32), placement, times=(500, 500, 500), latency=1000).makespan
    assert found < 0.9 * clock(zbv, placement, times=(500, 500, 500), latency=1000).makespan


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_ranking_keeps_forwards_and_backwards_in_order_and_only_puts_weight_gradients_off(chunks):
    for hint in orders_of(Profile.uniform(stages=4, chunks=chunks, delay=100), 16, make=critical_hint):
        ranked = sorted(hint.tasks, key=hint.key)
        assert [t for t in ranked if t.kind is not Kind.W] == [t for t in hint.tasks if t.kind is not Kind.W]
        assert [t for t in ranked if t.kind is Kind.W] == [t for t in hint.tasks if t.kind is Kind.W]
        moved = [ranked.index(task) - place for place, task in enumerate(hint.tasks) if task.kind is Kind.W]
        assert min(moved) >= 0
        assert (max(moved) > 0) == (chunks == 2)  # ZB-H1 has put them off by itself


def limits_of(stages, chunks, microbatches):
    if chunks == 2:
        return tuple(Limits(stash_by_chunk=chunk_profile(stage=s, stages=stages)) for s in range(stages))
    caps = in_flight_caps("equal-memory", stages=stages, microbatches=microbatches)
    return tuple(Limits(cap, stages) for cap in caps)


@settings(max_examples=60, deadline=None)
@given(
    profile=profiles,
    microbatches=st.integers(1, 16),
    fixed=st.booleans(),
    ordered=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_no_timing_stops_critical_or_makes_it_exceed_its_memory(profile, microbatches, fixed, ordered, seed):
    stages, chunks = profile.stages, profile.chunks
    limits = (Limits(),) * stages if fixed else limits_of(stages, chunks, microbatches)
    dispatch = "fixed" if fixed else "ready"
    placement = Placement(stages, chunks, "v")
    schedule = Schedule(
        "critical", dispatch, placement, microbatches, limits, split=True, ordered=ordered, profile=profile
    )
    step = simulate_step(
        schedule,
        duration=lambda stage, task: int(20 * uniform(seed, stage, *task)),
        arrival=lambda source, target, task, now: now + int(60 * uniform(seed, source, target, *task)),
    )
    assert max(step.peak_stash) <= stages * chunks
    orders = orders_of(profile, microbatches)
    for order, rows in zip(orders, step.rows, strict=True):
        ran = [row.task for row in rows if row.task is not None]
        assert sorted(ran) == sorted(order)
        assert not fixed or tuple(ran) == order


def test_known_costs_of_micro_batches_count():
    alike = Profile.uniform(stages=2, chunks=1, ns=100)
    dear = Profile(alike.durations, factors=(1.0, 5.0))
    orders = [ORDERS["zb-h1"](stage=s, stages=2, microbatches=2) for s in range(2)]
    assert dear.duration(0, Task(Kind.F, 1)) == 500
    assert step_time(orders, Placement(2), dear) > step_time(orders, Placement(2), alike)
    with pytest.raises(ValueError, match="knows 2 micro-batches, the step has 3"):
        critical(stage=0, stages=2, microbatches=3, profile=dear)


@pytest.mark.parametrize("chunks", [1, 2, 8])
def test_the_only_stage_takes_one_micro_batch_after_the_other_through_any_number_of_chunks(chunks):
    hint = make_hint("critical", stage=0, stages=1, microbatches=3, chunks=chunks)
    literature = {1: "zb-h1", 2: "zbv"}
    if chunks in literature:
        assert hint.tasks == ORDERS[literature[chunks]](stage=0, stages=1, microbatches=3)
    peaks = check_order((hint.tasks,), placement=Placement(1, chunks, "v"), microbatches=3, split=True)
    assert (peaks.in_flight, peaks.stash) == ((chunks,), (chunks,))
    finals = [task.chunk for task in hint.tasks if task.kind is Kind.W and task.microbatch == 2]
    assert finals == list(reversed(range(chunks))), "gradients become final from the last layer to the first"


def test_what_critical_cannot_do_is_refused_with_the_values_that_clash():
    with pytest.raises(ValueError, match="1 or 2 chunks a stage, not 3"):
        make_hint("critical", stage=0, stages=2, microbatches=4, chunks=3)
    with pytest.raises(ValueError, match="profile is of 3 stages of 1 chunks, the pipeline has 2 of 1"):
        critical(stage=0, stages=2, microbatches=4, profile=Profile.uniform(stages=3))
    with pytest.raises(ValueError, match="wait for each other in a circle"):
        f, b = Task(Kind.F, 0), Task(Kind.B, 0)
        start_times([[b, f], [f, b]], Placement(2), Profile.uniform(stages=2))
