"""Schedules in virtual time against the closed forms of the literature."""

import pytest
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass, check_order
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
    assert [str(t) for t in run.order[0]] == ["F0", "B0", "UPDATE1", "UPDATE0"]  # in the order of the next forward


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


def test_a_stash_that_shrinks_down_the_pipeline_does_not_stop_what_came_too_early():
    """Micro-batches 1 to 3 overtake 0 and fill stage 1, but stage 2 keeps its last place for 0: 1 must keep one too."""
    late = {(0, Task(Kind.F, 0)): 1000}
    limits = tuple(Limits(in_flight=left, stash=2 * left) for left in (3, 2, 1))
    schedule = Schedule("bf", "ready", Placement(3), 6, limits, split=True, ordered=True)
    run = VirtualPipeline.of(schedule, latency=lambda stage, task: late.get((stage, task), 0)).run()
    assert all(plan.done for plan in run.plans)
    assert all(plan.flight.peak_in_flight <= limit.in_flight for plan, limit in zip(run.plans, limits, strict=True))


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
