"""No timing stops a pipeline, repeats a task, breaks a dependency or exceeds a cap: every hint under both policies.

`virtual_pipeline` checks each dependency when a task starts. 500 cases here, 20,000 with `make test-nightly`.
"""

import random

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import RULES, Kind, Limits, Placement, Schedule, Task, TimeClass, check_order, limits_for
from hpcpipe.plan.hints import FAMILIES, ORDERS, SPLIT, placement_of

SETTINGS = ["equal-memory", "1f1b", "2x", "1.5x", "0.3x", "3GB"]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def drawn(seed, scale):
    """Return a function of stage and task alone, so that nothing depends on who asks first."""
    return lambda stage, task: hash((seed, scale, stage, *task)) % (scale + 1)  # numbers hash alike in every process


@st.composite
def placements(draw, hint):
    stages = draw(st.integers(1, 9))
    if hint in FAMILIES:
        chunks = None if FAMILIES[hint].chunks else draw(st.integers(1, FAMILIES[hint].most_chunks or 4))
        return placement_of(hint, stages=stages, chunks=chunks)
    return Placement(stages, draw(st.integers(1, 4)), draw(st.sampled_from(["round-robin", "v"])))


@st.composite
def limits(draw, hint, placement, microbatches, split, k):
    """Return caps as a job sets them, or any others: flat, by chunk, or both, another number on every stage."""
    stages, chunks = placement.stages, placement.chunks
    cap = st.integers(1, 10)
    setting = st.one_of(cap, st.lists(cap, min_size=stages, max_size=stages), st.sampled_from(SETTINGS))
    if draw(st.booleans()):
        return limits_for(
            placement,
            hint=hint,
            microbatches=microbatches,
            split=split,
            in_flight=draw(setting),
            stash=draw(st.none() | setting) if split else None,
            k=k,
            activation_bytes=[1e9 / (stage + 1) for stage in range(stages)],
        )
    kinds = draw(st.sampled_from(["flat", "by chunk", "both", "none"]))
    bounds = []
    for _ in range(stages):
        flat = (draw(st.none() | cap), draw(st.none() | cap)) if kinds in ("flat", "both") else (None, None)
        by_chunk = (
            [draw(st.none() | st.tuples(*[cap] * chunks)) for _ in range(2)]
            if kinds in ("by chunk", "both")
            else [None, None]
        )
        if kinds == "both":  # all stages or none: see Limits
            flat = (flat[0] or 10, flat[1])
            by_chunk[0] = by_chunk[0] or (10,) * chunks
        bounds.append(Limits(*flat, *by_chunk))
    return tuple(bounds)


@st.composite
def schedules(draw):
    hint = draw(st.sampled_from([*FAMILIES, *RULES, "file:order.csv"]))
    base = draw(st.sampled_from(sorted(RULES))) if hint.startswith("file:") else hint
    placement = draw(placements(base))
    microbatches = draw(st.integers(1, 24))
    k = draw(st.integers(1, 30)) if hint == "kfkb" else None
    dispatch = "ready" if hint in RULES else draw(st.sampled_from(["ready", "fixed"]))
    split = hint in SPLIT or ((dispatch == "ready" or hint.startswith("file:")) and draw(st.booleans()))
    ordered = draw(st.booleans())
    bounds = draw(limits(base, placement, microbatches, split, k))
    orders = None
    if hint.startswith("file:"):
        seed = draw(st.integers(0, 2**32))
        recorded = Schedule(base, "ready", placement, microbatches, bounds, split=split, ordered=ordered)
        orders = tuple(map(tuple, run(recorded, seed).order))
        if dispatch == "ready" and draw(st.booleans()):  # any ranking at all will do
            orders = tuple(tuple(random.Random(seed + s).sample(o, len(o))) for s, o in enumerate(orders))
    return Schedule(hint, dispatch, placement, microbatches, bounds, split=split, ordered=ordered, k=k, orders=orders)


def run(schedule, seed, **more):
    pipeline = VirtualPipeline.of(schedule, duration=drawn(seed, 20), latency=drawn(seed, seed % 3 * 100), **more)
    return pipeline.run()


def check(schedule, seed, replicated, buckets):
    event(f"{schedule.hint} {schedule.dispatch}")
    chunks, split = schedule.placement.chunks, schedule.split
    pipeline = run(schedule, seed, replicated=replicated, buckets=buckets)
    assert all(plan.done for plan in pipeline.plans)
    compute = [Kind.F, Kind.B, *([Kind.W] if split else [])]
    finish = [Kind.RS, Kind.UPDATE, Kind.AG] if replicated else [Kind.UPDATE]
    wanted = {Task(kind, m, c) for kind in compute for m in range(schedule.microbatches) for c in range(chunks)}
    wanted |= {Task(kind, bucket) for kind in finish for bucket in range(buckets)}
    for stage, (plan, order) in enumerate(zip(pipeline.plans, pipeline.order, strict=True)):
        assert len(order) == len(wanted)
        assert set(order) == wanted
        assert plan.flight.in_flight == plan.flight.stash == 0
        if schedule.dispatch == "fixed":
            tasks = [task for task in order if task.kind in compute]
            assert tasks == own_order(schedule, stage)
        else:
            assert TimeClass.ORDER not in pipeline.reasons[stage]
            check_caps(schedule.limits[stage], order, chunks, split)
    own = [[task for task in order if task.kind in compute] for order in pipeline.order]
    check_order(own, placement=schedule.placement, microbatches=schedule.microbatches, split=split)


def own_order(schedule, stage):
    if schedule.orders is not None:
        return list(schedule.orders[stage])
    more = {"k": schedule.k} if schedule.k else {}
    if schedule.hint in ("interleaved", "critical"):
        more = {"chunks": schedule.placement.chunks}
    maker = ORDERS[schedule.hint]
    return list(maker(stage=stage, stages=schedule.placement.stages, microbatches=schedule.microbatches, **more))


def check_caps(limit, order, chunks, split):
    """Count from what ran; a cap for C chunks together may be exceeded by C (RRFP, corollary C.2)."""
    for release, flat, by_chunk in (
        (Kind.B, limit.in_flight, limit.in_flight_by_chunk),
        (Kind.W if split else Kind.B, limit.stash, limit.stash_by_chunk),
    ):
        held = [0] * chunks
        for task in order:  # counted when it starts: one at a time, so the one before has finished
            if task.kind in (Kind.F, release):
                held[task.chunk] += 1 if task.kind is Kind.F else -1
            assert flat is None or sum(held) <= flat + (chunks if chunks > 1 else 0)
            assert by_chunk is None or all(now <= cap for now, cap in zip(held, by_chunk, strict=True))


CASE = {
    "schedule": schedules(),
    "seed": st.integers(0, 2**32),
    "replicated": st.booleans(),
    "buckets": st.integers(0, 3),
}


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(**CASE)
def test_no_timing_stops_a_pipeline_repeats_a_task_breaks_a_dependency_or_exceeds_a_cap(
    schedule, seed, replicated, buckets
):
    check(schedule, seed, replicated, buckets)


@pytest.mark.nightly
@pytest.mark.parametrize("thousand", range(20))
@settings(max_examples=1000, deadline=None, suppress_health_check=SLOW)
@given(**CASE)
def test_no_timing_does_so_in_20_000_cases(thousand, schedule, seed, replicated, buckets):
    check(schedule, seed, replicated, buckets)
