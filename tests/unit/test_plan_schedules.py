"""Schedules in virtual time against the closed forms of the literature, and the plan's promises under random timing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import Kind, Placement, Task, TimeClass, check_order, chunk_profile, in_flight_caps
from hpcpipe.plan.hints import ORDERS

SIZES = [(1, 1), (1, 4), (2, 1), (2, 5), (4, 3), (4, 4), (4, 16), (8, 32)]


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("hint", ["gpipe", "1f1b"])
def test_a_fixed_order_without_latency_takes_the_makespan_of_the_closed_form(hint, stages, microbatches):
    run = VirtualPipeline(stages=stages, microbatches=microbatches, hint=hint, dispatch="fixed").run()
    assert run.makespan == (microbatches + stages - 1) * (1 + 2)  # GPipe and 1F1B: (M + S - 1)(F + B)


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_peaks_in_flight_are_those_of_the_literature(stages, microbatches):
    gpipe = VirtualPipeline(stages=stages, microbatches=microbatches, hint="gpipe", dispatch="fixed").run()
    assert gpipe.peaks == [microbatches] * stages
    one = VirtualPipeline(stages=stages, microbatches=microbatches, hint="1f1b", dispatch="fixed").run()
    assert one.peaks == [min(microbatches, stages - s) for s in range(stages)]


@pytest.mark.parametrize("latency", [1, 2, 5])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 16), (4, 32), (8, 64)])
def test_constant_latency_costs_fixed_1f1b_its_known_price_per_microbatch(stages, microbatches, latency):
    """The steady period is F + B + 2c(S-1)/S a micro-batch; over one warm cycle of S micro-batches it is exact."""
    forward, backward = 10, 20

    def makespan(count):
        return (
            VirtualPipeline(
                stages=stages,
                microbatches=count,
                hint="1f1b",
                dispatch="fixed",
                duration=lambda _s, t: forward if t.kind is Kind.F else backward,
                latency=lambda _s, _t: latency,
            )
            .run()
            .makespan
        )

    cycle = makespan(microbatches + stages) - makespan(microbatches)
    assert cycle == stages * (forward + backward) + 2 * latency * (stages - 1)


def test_bf_alternates_backwards_and_forwards_when_both_are_ready():
    run = VirtualPipeline(stages=1, microbatches=3, hint="bf", dispatch="ready", in_flight=2).run()
    names = [str(task) for task in run.order[0]]
    assert names == ["F0", "B0", "F1", "B1", "F2", "B2"]


def test_bf_runs_one_forward_between_two_ready_backwards():
    """RRFP, algorithm 1: a round is one backward, then one forward, however many of each are ready."""
    held = {Task(Kind.B, 0): 40, Task(Kind.B, 1): 1}
    run = VirtualPipeline(
        stages=2,
        microbatches=6,
        hint="bf",
        dispatch="ready",
        in_flight=4,
        duration=lambda _s, _t: 10,
        latency=lambda stage, task: held.get(task, 0) if stage == 1 else 0,
    ).run()
    kinds = "".join(task.kind.name for task in run.order[0])
    assert "BFB" in kinds
    assert "BB" not in kinds[: kinds.rindex("F")]


def test_a_late_gradient_never_blocks_a_ready_forward():
    late = {(1, Task(Kind.B, 0)): 100}
    arguments = {"stages": 2, "microbatches": 4, "latency": lambda stage, task: late.get((stage, task), 0)}
    ready = VirtualPipeline(hint="1f1b", dispatch="ready", in_flight=4, **arguments).run()
    fixed = VirtualPipeline(hint="1f1b", dispatch="fixed", **arguments).run()
    assert ready.order[0].index(Task(Kind.F, 3)) < ready.order[0].index(Task(Kind.B, 0))
    assert fixed.order[0].index(Task(Kind.F, 3)) > fixed.order[0].index(Task(Kind.B, 0))
    assert ready.makespan < fixed.makespan


def test_the_reason_of_a_wait_is_named():
    late = {(1, Task(Kind.B, 0)): 100}
    arguments = {"stages": 2, "microbatches": 4, "latency": lambda stage, task: late.get((stage, task), 0)}
    fixed = VirtualPipeline(hint="1f1b", dispatch="fixed", **arguments).run()
    assert TimeClass.ORDER in fixed.reasons[0]
    capped = VirtualPipeline(hint="1f1b", dispatch="ready", in_flight="1f1b", **arguments).run()
    assert TimeClass.CAP in capped.reasons[0]
    assert TimeClass.ORDER not in capped.reasons[0]
    assert capped.reasons[1][0] is TimeClass.WARMUP
    roomy = VirtualPipeline(hint="1f1b", dispatch="ready", in_flight=4, **arguments).run()
    assert set(roomy.reasons[0]) == {TimeClass.DEPENDENCY}


def test_buckets_are_reduced_updated_and_gathered_after_the_last_backward():
    run = VirtualPipeline(stages=2, microbatches=2, hint="bf", dispatch="ready", replicated=True, buckets=3).run()
    tail = run.order[0][4:]
    assert [t.kind for t in tail[:3]] == [Kind.RS] * 3  # all are started at once: they run beside the tasks
    for bucket in range(3):
        steps = [run.finished[0, Task(kind, bucket)] for kind in (Kind.RS, Kind.UPDATE, Kind.AG)]
        assert steps == sorted(steps)
    assert TimeClass.EXPOSED_COMM in run.reasons[0]


def test_one_replica_only_updates():
    run = VirtualPipeline(stages=1, microbatches=1, hint="bf", dispatch="ready", buckets=2).run()
    assert [str(t) for t in run.order[0]] == ["F0", "B0", "UPDATE0", "UPDATE1"]


@settings(max_examples=500)
@given(
    stages=st.integers(1, 9),
    microbatches=st.integers(1, 24),
    chunks=st.integers(1, 4),
    shape=st.sampled_from(["round-robin", "v"]),
    split=st.booleans(),
    ordered=st.booleans(),
    hint=st.sampled_from(["gpipe", "1f1b", "bf"]),
    cap=st.one_of(st.integers(1, 10), st.sampled_from(["equal-memory", "1f1b", "2x"])),
    stash=st.one_of(st.none(), st.integers(1, 12)),
    replicated=st.booleans(),
    buckets=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_no_timing_makes_a_pipeline_stop_repeat_or_exceed_its_caps(
    stages, microbatches, chunks, shape, split, ordered, hint, cap, stash, replicated, buckets, seed
):
    """Draws what may be drawn under readiness; `gpipe` and `1f1b` know one chunk only."""
    if chunks > 1:
        hint = "bf"
    run = VirtualPipeline(
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        shape=shape,
        split=split,
        ordered=ordered,
        hint=hint,
        dispatch="ready",
        in_flight=cap,
        stash=None if stash is None else stash * chunks,
        duration=_drawn(seed, 20),
        latency=_drawn(seed, 60),
        replicated=replicated,
        buckets=buckets,
    ).run()
    _check_complete(run, microbatches, replicated, buckets)
    for plan, limit in zip(run.plans, run.caps, strict=True):
        assert plan.flight.peak_in_flight <= limit * chunks + (chunks if chunks > 1 else 0)
        assert stash is None or plan.flight.peak_stash <= stash * chunks + (chunks if chunks > 1 else 0)
        assert plan.flight.in_flight == plan.flight.stash == 0
    assert all(TimeClass.ORDER not in reasons for reasons in run.reasons)


@settings(max_examples=100)
@given(
    stages=st.integers(1, 9),
    microbatches=st.integers(1, 24),
    hint=st.sampled_from(["gpipe", "1f1b"]),
    seed=st.integers(0, 2**32),
)
def test_a_fixed_order_is_followed_whatever_the_timing(stages, microbatches, hint, seed):
    run = VirtualPipeline(
        stages=stages,
        microbatches=microbatches,
        hint=hint,
        dispatch="fixed",
        duration=_drawn(seed, 20),
        latency=_drawn(seed, 60),
    ).run()
    _check_complete(run, microbatches, False, 0)
    orders = [ORDERS[hint](stage=s, stages=stages, microbatches=microbatches) for s in range(stages)]
    assert [tuple(order) for order in run.order] == orders


def _drawn(seed, scale):
    return lambda stage, task: random.Random(f"{seed}/{scale}/{stage}/{task}").randint(0, scale)


def _check_complete(run, microbatches, replicated, buckets):
    assert all(plan.done for plan in run.plans)
    compute = [Kind.F, Kind.B, *([Kind.W] if run.split else [])]
    finish = [Kind.RS, Kind.UPDATE, Kind.AG] if replicated else [Kind.UPDATE]
    wanted = {Task(k, m, c) for k in compute for m in range(microbatches) for c in range(run.placement.chunks)}
    wanted |= {Task(k, b) for k in finish for b in range(buckets)}
    for order in run.order:
        assert len(order) == len(wanted)
        assert set(order) == wanted


@settings(max_examples=300)
@given(
    stages=st.integers(1, 9),
    microbatches=st.integers(1, 24),
    by_chunk=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    shape=st.sampled_from(["round-robin", "v"]),
    split=st.booleans(),
    ordered=st.booleans(),
    hint=st.sampled_from(["bf", "fb", "b-priority", "f-priority", "bfw"]),
    seed=st.integers(0, 2**32),
)
def test_caps_by_chunk_are_never_exceeded_and_never_stop_the_pipeline(
    stages, microbatches, by_chunk, shape, split, ordered, hint, seed
):
    run = VirtualPipeline(
        stages=stages,
        microbatches=microbatches,
        chunks=len(by_chunk),
        shape=shape,
        split=split,
        ordered=ordered,
        hint=hint,
        dispatch="ready",
        in_flight=1000,
        by_chunk=tuple(by_chunk),
        duration=_drawn(seed, 20),
        latency=_drawn(seed, 60),
    ).run()
    _check_complete(run, microbatches, False, 0)
    last = Kind.W if split else Kind.B
    for order in run.order:
        stash, peaks = [0] * len(by_chunk), [0] * len(by_chunk)
        for task in order:  # a task is counted when it starts: one at a time, so the one before has finished
            stash[task.chunk] += (task.kind is Kind.F) - (task.kind is last)
            peaks[task.chunk] = max(peaks[task.chunk], stash[task.chunk])
        assert all(peak <= cap for peak, cap in zip(peaks, by_chunk, strict=True))


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 8), (4, 16), (8, 32)])
def test_the_caps_by_chunk_are_the_peaks_of_the_order_zbv(stages, microbatches):
    for stage in range(stages):
        stash, peaks = [0, 0], [0, 0]
        for task in ORDERS["zbv"](stage=stage, stages=stages, microbatches=microbatches):
            stash[task.chunk] += (task.kind is Kind.F) - (task.kind is Kind.W)
            peaks[task.chunk] = max(peaks[task.chunk], stash[task.chunk])
        assert tuple(peaks) == chunk_profile(stage=stage, stages=stages)


def test_weight_gradients_that_wait_for_their_order_do_not_close_the_stash_for_good():
    """The gradient of micro-batch 1 comes long before micro-batch 0's activation: with W in order, 0 must still fit."""
    late = {(0, Task(Kind.F, 0)): 1000}
    run = VirtualPipeline(
        stages=2,
        microbatches=6,
        hint="bf",
        dispatch="ready",
        in_flight=6,
        stash=2,
        split=True,
        latency=lambda stage, task: late.get((stage, task), 0),
    ).run()
    assert all(plan.done for plan in run.plans)
    assert [plan.flight.peak_stash for plan in run.plans] == [2, 2]


def test_equal_memory_never_stashes_more_than_1f1b_does_at_stage_0():
    for stages in range(1, 65):
        caps = in_flight_caps("equal-memory", stages=stages, microbatches=1000)
        assert max(caps) == caps[0] == stages
        assert all(cap >= stages - s for s, cap in enumerate(caps))  # a cap below S - s is a disaster (papers.md 1.9)


@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        ("1f1b", (4, 3, 2, 1)),
        ("2x", (8, 6, 4, 2)),
        ("1.5x", (6, 5, 3, 2)),
        (3, (3, 3, 3, 3)),
        ([4, 3, 2, 9], (4, 3, 2, 9)),
    ],
)
def test_caps_are_resolved_per_stage(setting, caps):
    assert in_flight_caps(setting, stages=4, microbatches=100) == caps


def test_a_cap_is_never_above_the_number_of_microbatches():
    assert in_flight_caps(100, stages=2, microbatches=3) == (3, 3)


@pytest.mark.parametrize("setting", [0, [1, 0], [1, 2, 3], "7"])
def test_a_cap_that_cannot_be_is_refused(setting):
    with pytest.raises(ValueError, match="in-flight cap"):
        in_flight_caps(setting, stages=2, microbatches=4)


def test_every_bundled_order_is_complete_and_executable():
    for hint in ("gpipe", "1f1b"):
        order = ORDERS[hint]
        for stages in range(1, 9):
            for microbatches in range(1, 17):
                orders = [order(stage=s, stages=stages, microbatches=microbatches) for s in range(stages)]
                peaks = check_order(orders, placement=Placement(stages), microbatches=microbatches, split=False)
                bound = [microbatches if hint == "gpipe" else min(microbatches, stages - s) for s in range(stages)]
                assert list(peaks.in_flight) == bound


def test_orders_that_wait_for_each_other_are_refused_with_the_circle():
    f0, b0, f1, b1 = Task(Kind.F, 0), Task(Kind.B, 0), Task(Kind.F, 1), Task(Kind.B, 1)
    with pytest.raises(ValueError, match=r"stage 0 at B0 .*stage 1 at F1 \(needs F1 of stage 0\)"):
        check_order([[f0, b0, f1, b1], [f1, f0, b0, b1]], placement=Placement(2), microbatches=2, split=False)


def test_incomplete_and_repeating_orders_are_refused():
    f0, b0 = Task(Kind.F, 0), Task(Kind.B, 0)
    with pytest.raises(ValueError, match="missing B0"):
        check_order([[f0]], placement=Placement(1), microbatches=1, split=False)
    with pytest.raises(ValueError, match="repeats F0"):
        check_order([[f0, f0, b0]], placement=Placement(1), microbatches=1, split=False)
