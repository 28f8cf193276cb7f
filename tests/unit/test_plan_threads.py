"""What users of pipeline frameworks ran into in public, as promises of plan/: by kind, each with its thread."""

import pytest
from order_clock import clock
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import RULES, Kind, Limits, Placement, Schedule, Task, balanced_split, check_order, limits_for
from hpcpipe.plan.hints import FAMILIES, ORDERS, SPLIT, placement_of

NAMES = [*FAMILIES, *RULES]


def more_of(hint, chunks=2):
    return {"k": 2} if hint == "kfkb" else {"chunks": chunks} if hint == "interleaved" else {}


def own_orders(hint, stages, microbatches, chunks=2):
    more = more_of(hint, chunks)
    orders = [ORDERS[hint](stage=s, stages=stages, microbatches=microbatches, **more) for s in range(stages)]
    return orders, placement_of(hint, stages=stages, chunks=more.get("chunks"))


def schedule_of(hint, dispatch, stages, microbatches, *, chunks=2, ordered=True, **caps):
    split = hint in SPLIT
    placement = (
        placement_of(hint, stages=stages, chunks=more_of(hint, chunks).get("chunks")) if hint in FAMILIES else None
    )
    placement = placement or Placement(stages)
    k = more_of(hint).get("k")
    limits = limits_for(placement, hint=hint, microbatches=microbatches, split=split, k=k, **caps)
    if dispatch == "fixed":
        limits = (Limits(),) * stages
    return Schedule(hint, dispatch, placement, microbatches, limits, split=split, ordered=ordered, k=k)


@pytest.mark.parametrize("microbatches", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stages", [2, 4, 6])
@pytest.mark.parametrize("hint", NAMES)
def test_any_number_of_micro_batches_runs_under_every_hint(hint, stages, microbatches):
    """Fewer micro-batches than stages hung (pytorch/torchtitan#775), were forbidden to all schedules alike
    (pytorch/pytorch#144702), and had to lie in an empty range (NVIDIA-NeMo/Speech#14288)."""
    for dispatch in ("ready",) if hint in RULES else ("ready", "fixed"):
        schedule = schedule_of(hint, dispatch, stages, microbatches)
        run = VirtualPipeline.of(schedule).run()
        assert all(plan.done for plan in run.plans)
        kinds = 3 if schedule.split else 2
        assert [len(order) for order in run.order] == [kinds * microbatches * schedule.placement.chunks] * stages


@pytest.mark.parametrize(("microbatches", "stages"), [(1, 4), (2, 4), (3, 6), (5, 8)])
def test_few_micro_batches_only_make_the_bubble_longer(microbatches, stages):
    """pytorch/torchtitan#775: with M < S the closed form (M + S - 1)(F + B) still holds."""
    for hint in ("gpipe", "1f1b", "kfkb"):
        orders, placement = own_orders(hint, stages, microbatches)
        if microbatches % 2 == 0 or hint != "kfkb":
            assert clock(orders, placement, times=(1, 2)).makespan == (microbatches + stages - 1) * 3


@pytest.mark.parametrize(("layers", "stages", "chunks"), [(80, 16, 2), (80, 16, 5), (8, 2, 2), (31, 4, 3), (16, 1, 4)])
@pytest.mark.parametrize("shape", ["round-robin", "v"])
def test_every_layer_lies_on_one_virtual_stage(layers, stages, chunks, shape):
    """80 layers on 16 stages of 2 chunks silently became 64 (NVIDIA/Megatron-LM#468); an override on the last stage
    shrank a model on one stage (NVIDIA/Megatron-LM#1778)."""
    placement = Placement(stages, chunks, shape)
    sizes = balanced_split([1.0] * layers, placement.virtual_stages)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    starts = [sum(sizes[:virtual]) for virtual in range(placement.virtual_stages)]
    held = [
        layer
        for stage in range(stages)
        for virtual in [placement.virtual(stage, chunk) for chunk in range(chunks)]
        for layer in range(starts[virtual], starts[virtual] + sizes[virtual])
    ]
    assert sorted(held) == list(range(layers))


def test_layers_are_dealt_out_by_cost_and_not_by_number():
    """Users ask for an uneven split that follows from the costs (ISEEKYAN/Megatron-LM#44 and #47)."""
    sizes = balanced_split([1.0] * 12, 4, before=2.0, after=2.0)
    assert sizes == (2, 4, 4, 2)  # 16 in all, 4 on each


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_two_stages_can_be_interleaved(chunks, microbatches):
    """More than two stages were demanded (NVIDIA/Megatron-LM#750)."""
    orders, placement = own_orders("interleaved", 2, microbatches, chunks)
    check_order(orders, placement=placement, microbatches=microbatches, split=False)
    if microbatches % 2 == 0:
        assert clock(orders, placement, times=(1, 2)).makespan == 3 * (microbatches * chunks + 1)


@pytest.mark.parametrize("microbatches", [1, 2, 5, 16])
@pytest.mark.parametrize("stages", [1, 2, 4, 7])
@pytest.mark.parametrize("hint", sorted(hint for hint in FAMILIES if FAMILIES[hint].split))
def test_a_weight_gradient_is_always_there_when_it_is_taken(hint, stages, microbatches):
    """An empty queue of weight gradients was popped (sail-sg/zero-bubble-pipeline-parallelism#72)."""
    orders, placement = own_orders(hint, stages, microbatches)
    check_order(orders, placement=placement, microbatches=microbatches, split=True)
    for order in orders:
        pending = [0] * placement.chunks
        for task in order:
            pending[task.chunk] += (task.kind is Kind.B) - (task.kind is Kind.W)
            assert pending[task.chunk] >= 0
        assert pending == [0] * placement.chunks


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_the_warm_up_has_the_forwards_of_the_closed_form(stages):
    """A warm-up with fewer forwards than memory allows is slow (sail-sg/zero-bubble-pipeline-parallelism#73)."""
    many = 6 * stages
    for stage in range(stages):
        expected = {
            "gpipe": many,
            "1f1b": stages - stage,
            "kfkb": 2 * (stages - stage),
            "zb-h1": stages - stage,
            "zb-h2": 2 * (stages - stage) - 1,
            "interleaved": 2 * (stages - 1 - stage) + stages + 1,
        }
        for hint, forwards in expected.items():
            order = ORDERS[hint](stage=stage, stages=stages, microbatches=many, **more_of(hint))
            kinds = [task.kind for task in order]
            assert kinds.index(Kind.B) == forwards, hint
        zbv = ORDERS["zbv"](stage=stage, stages=stages, microbatches=many)
        first = next(i for i, task in enumerate(zbv) if task.chunk == 1)
        assert first == 2 * (stages - stage) - 1  # forwards of chunk 0 until the V has come back


@pytest.mark.parametrize("hint", ["interleaved", "zbv"])
def test_a_late_message_of_one_chunk_does_not_hold_up_another_chunk(hint):
    """A receive stood before an independent forward (pytorch/pytorch#188833 and #172668).

    The output of chunk 0 of the first stage is late for micro-batch 1. What follows it in the order of its receiver
    waits for it under `fixed`; under `ready` others of both chunks go first.
    """
    late, microbatches = 1000, 8
    sent, held_up = (0, Task(Kind.F, 1)), (1, Task(Kind.F, 1))

    def run(dispatch):
        schedule = schedule_of(hint, dispatch, 2, microbatches, ordered=False)
        return VirtualPipeline.of(schedule, latency=lambda stage, task: late if (stage, task) == sent else 0).run()

    fixed, ready = run("fixed"), run("ready")
    behind = fixed.order[1][fixed.order[1].index(held_up[1]) + 1 :]
    assert all(fixed.finished[1, task] > fixed.arrived[held_up] for task in behind)
    before = [task for task in behind if ready.finished[1, task] < ready.arrived[held_up]]
    assert {task.chunk for task in before} == {0, 1}
    assert ready.makespan < fixed.makespan


@pytest.mark.parametrize(
    ("hint", "dispatch"), [(hint, "ready") for hint in NAMES] + [(hint, "fixed") for hint in FAMILIES]
)
def test_gradients_are_summed_in_one_order_whatever_the_timing(hint, dispatch):
    """The order of the weight gradients changed the sums (deepspeedai/Megatron-DeepSpeed#396)."""
    schedule = schedule_of(hint, dispatch, 4, 9)
    for seed in range(5):
        run = VirtualPipeline.of(schedule, latency=lambda stage, task, s=seed: (s * 37 + stage * 11 + task[1] * 7) % 50)
        for order in run.run().order:
            for chunk in range(schedule.placement.chunks):
                weights = [task.microbatch for task in order if task.kind is Kind.W and task.chunk == chunk]
                assert weights == (list(range(9)) if schedule.split else [])


def test_buckets_are_reduced_once_after_the_last_gradient_that_they_hold():
    """Parameters were reduced once a micro-batch (deepspeedai/DeepSpeed#823)."""
    for hint in ("bf", "zb-h1", "interleaved"):
        schedule = schedule_of(hint, "ready", 3, 5)
        chunks = schedule.placement.chunks
        run = VirtualPipeline.of(schedule, replicated=True, buckets=2).run()
        for order in run.order:
            assert [task.kind for task in order].count(Kind.RS) == 2
            for bucket in range(2):
                held = range(chunks) if chunks == 1 else [chunks - 1 - bucket]  # the first bucket is the last chunk's
                gradients = [i for i, task in enumerate(order) if task.kind in (Kind.B, Kind.W) and task.chunk in held]
                assert order.index(Task(Kind.RS, bucket)) > max(gradients)


def test_a_large_order_is_checked_without_looking_at_any_task_twice():
    """64 stages of 512 micro-batches; a check that waits in rounds would look at tasks stages x more often."""
    stages, microbatches = 64, 512
    looked = 0

    class Counting(tuple):
        __slots__ = ()

        def __getitem__(self, index):
            nonlocal looked
            looked += 1
            return super().__getitem__(index)

    orders = [Counting(ORDERS["1f1b"](stage=s, stages=stages, microbatches=microbatches)) for s in range(stages)]
    peaks = check_order(orders, placement=Placement(stages), microbatches=microbatches, split=False)
    assert peaks.in_flight == tuple(stages - s for s in range(stages))
    tasks = 2 * stages * microbatches
    assert looked <= 3 * tasks  # once when it runs and at most once for each of its two inputs
