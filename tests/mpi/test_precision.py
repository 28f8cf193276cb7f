"""fp32 shards under bf16 and fp16, what gradients are added in, and bits that no schedule changes in bf16 either."""

import json

import pytest
import torch
from kept_state import state_of
from layers import by_layer, disturb
from training import load, needs, on_four, reference, train_on

from hpcpipe.collective import Group
from hpcpipe.plan import Kind
from hpcpipe.train.bucket import MASTER, Bucket
from hpcpipe.train.precision import Types

BF16 = 'precision.compute="bf16"'


def _layout(pipeline, hint, dispatch, *more):
    layout = [f"parallel.pipeline={pipeline}", f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"']
    return ["comm.bucket_mb=0.02", *layout, *more]


def _sgd(rate):
    return lambda parameter, _decay: torch.optim.SGD([parameter], lr=rate)


@pytest.fixture
def alone():
    from mpi4py import MPI

    group = Group(MPI.COMM_SELF)
    yield group
    group.free()


@pytest.mark.mpi
def test_many_tiny_bf16_gradients_are_added_without_loss(alone):
    """In bf16 a sum of 1 and many 2^-9 stays 1 (DeepSpeed 2768, Megatron-LM 502)."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    types = Types(torch.bfloat16, torch.float32)
    bucket = Bucket([[parameter]], replicas=alone, make_optimizer=_sgd(1.0), types=types)
    assert parameter.dtype == torch.bfloat16
    bucket.add(0, [torch.ones(3, dtype=torch.bfloat16)], begin=0, first=True)
    for _ in range(1024):
        bucket.add(0, [torch.full((3,), 2.0**-9, dtype=torch.bfloat16)], begin=0, first=False)
    bucket.measure()
    assert bucket.square_norm == pytest.approx(3 * 9.0)
    bucket.update(1.0, 1.0)
    assert parameter.tolist() == [-3.0] * 3


@pytest.mark.mpi
def test_updates_smaller_than_a_bf16_step_add_up_in_the_fp32_values(alone):
    parameter = torch.nn.Parameter(torch.ones(2))
    bucket = Bucket([[parameter]], replicas=alone, make_optimizer=_sgd(1e-3), types=Types(torch.bfloat16))
    for _ in range(8):
        bucket.add(0, [torch.ones(2, dtype=torch.bfloat16)], begin=0, first=True)
        bucket.update(1e-3, 1.0)
    assert state_of([bucket], parameter)[2][MASTER].tolist() == pytest.approx([0.992] * 2, rel=1e-6)
    assert parameter.tolist() == [torch.tensor(0.992).bfloat16().item()] * 2


@pytest.mark.mpi
@pytest.mark.parametrize(("compute", "tolerance"), [("bf16", 2e-3), ("fp16", 3e-4)])
def test_losses_in_16_bits_follow_those_in_fp32(comm, tmp_path, compute, tolerance):
    needs(comm, 2)
    settings = _layout(min(comm.size, 2), "bf", "ready", "job.steps=10", f'precision.compute="{compute}"')
    losses = reference(load(tmp_path, "job.steps=10"))[0] if comm.rank == 0 else None
    result = train_on(comm, tmp_path, *settings)
    if result is not None:
        assert {p.dtype for p in result[1]} == {torch.bfloat16 if compute == "bf16" else torch.float16}
    if comm.rank == 0:
        assert result[0] == pytest.approx(losses, rel=tolerance)
        assert result[0] != pytest.approx(losses, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_in_bf16_ready_has_the_bits_of_fixed_under_any_timing(comm, tmp_path):
    needs(comm, 2)
    more = ("job.steps=4", "batch.microbatches=8", "model.dropout=0.1", "optimizer.clip=0.5", BF16)
    bits = None
    runs = [("1f1b", "fixed"), ("bf", "ready"), ("1f1b", "ready"), ("zb-h1", "ready"), ("zbv", "ready")]
    for seed, (hint, dispatch) in enumerate(runs):
        settings = _layout(2, hint, dispatch, *more)
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed) if seed else lambda _s, _r: None)
        found = by_layer(comm, result, load(tmp_path, *settings))
        if comm.rank == 0:
            bits = bits or (found, result[0])
            assert result[0] == bits[1], hint
            assert all(torch.equal(found[name], bits[0][name]) for name in bits[0]), hint


@pytest.mark.mpi(min_size=2)
def test_in_bf16_neither_dropout_nor_clipping_depends_on_the_pipeline(comm, tmp_path):
    on_four(comm)
    more = ("job.steps=3", "model.dropout=0.2", "optimizer.clip=0.5", BF16)
    found = []
    for pipeline in (1, 2, 4):
        settings = _layout(pipeline, "bf", "ready", *more)
        result = train_on(comm, tmp_path, *settings, before_step=_one_thread)
        found.append(by_layer(comm, result, load(tmp_path, *settings)))
    if comm.rank == 0:
        assert all(torch.equal(found[0][name], other[name]) for other in found[1:] for name in other)


def _one_thread(step, _rank):
    if step == 0:
        torch.set_num_threads(1)  # one rank alone may use all cores, and would add in sums of other parts


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_what_a_rank_keeps_for_updates_falls_by_the_number_of_replicas(comm, tmp_path, compute):
    per_value = 8 if compute == "fp32" else 12  # two moments, and the fp32 value where another is computed with
    for replicas in (1, 2, *([4] if comm.size >= 4 else [])):
        sizes, counts = [], []

        def look(_step, rank, sizes=sizes, counts=counts):
            sizes.append(rank.buckets.state_bytes)
            counts.append((sum(p.numel() for each in rank.parameters for p in each), len(rank.buckets)))

        more = (f"parallel.data={replicas}", "job.steps=1", f'precision.compute="{compute}"')
        train_on(comm, tmp_path, *_layout(1, "bf", "ready", *more), before_step=look)
        if sizes:
            (numel, buckets), size = counts[0], sizes[0]
            assert per_value * numel / replicas <= size <= per_value * (numel / replicas + buckets) + 4 * buckets


@pytest.mark.mpi(min_size=2)
def test_states_of_all_replicas_cover_every_parameter_once_and_the_master_is_what_is_computed_with(comm, tmp_path):
    replicas = min(comm.size, 4)
    kept = []

    def look(step, rank):
        if step == 1:
            kept.extend((p, *state_of(rank.buckets.members, p)) for each in rank.parameters for p in each)

    more = (f"parallel.data={replicas}", "job.steps=2", "batch.microbatches=2", BF16)
    train_on(comm, tmp_path, *_layout(1, "bf", "ready", *more), before_step=look)
    gathered = comm.allgather([(p.numel(), begin, end, sorted(states)) for p, begin, end, states in kept])
    if comm.rank == 0:
        for pieces in zip(*gathered[:replicas], strict=True):
            size = pieces[0][0]
            covered = sorted((begin, end) for _, begin, end, _ in pieces if end > begin)
            assert [covered[0][0], *(end for _, end in covered)] == [*(begin for begin, _ in covered), size]
            assert all(names == ["exp_avg", "exp_avg_sq", MASTER, "step"] for *_, names in pieces)
    for _, begin, end, states in kept:
        assert all(value.numel() == end - begin for name, value in states.items() if name != "step")


@pytest.mark.mpi(min_size=2)
def test_gradients_that_travel_in_bf16_leave_all_replicas_the_same_bits_and_nearly_the_losses_of_fp32(comm, tmp_path):
    needs(comm, 2)
    common = ("parallel.data=2", "job.steps=6", "batch.microbatches=3")
    wide = train_on(comm, tmp_path, *_layout(1, "bf", "ready", *common))
    narrow = train_on(comm, tmp_path, *_layout(1, "bf", "ready", *common, 'precision.reduce="bf16"'))
    both = comm.allgather(None if narrow is None else [p.numpy().tobytes() for p in narrow[1]])
    assert both[0] == both[1]
    if comm.rank == 0:
        assert narrow[0] == pytest.approx(wide[0], rel=1e-3)
        assert narrow[0] != wide[0]


@pytest.mark.mpi(min_size=2)
def test_what_replicas_exchange_has_the_bytes_of_its_type(comm, tmp_path):
    needs(comm, 2)
    sizes = {}
    for reduce, compute in [("fp32", "fp32"), ("bf16", "fp32"), ("fp32", "bf16"), ("bf16", "bf16")]:

        def watch(step, rank, key=(reduce, compute)):
            if step == 0:
                start = rank.buckets.start

                def noting(task):
                    sizes.setdefault((*key, task.kind), []).append(rank.buckets.num_bytes(task))
                    start(task)

                rank.buckets.start = noting

        more = ("parallel.data=2", "job.steps=1", f'precision.reduce="{reduce}"', f'precision.compute="{compute}"')
        train_on(comm, tmp_path, *_layout(1, "bf", "ready", *more), before_step=watch)
    if comm.rank < 2:
        whole = {key: sum(each) for key, each in sizes.items()}
        full = whole["fp32", "fp32", Kind.RS]
        assert whole["fp32", "fp32", Kind.AG] == full
        assert (whole["bf16", "fp32", Kind.RS], whole["bf16", "fp32", Kind.AG]) == (full / 2, full)
        assert (whole["fp32", "bf16", Kind.RS], whole["fp32", "bf16", Kind.AG]) == (full, full / 2)
        assert (whole["bf16", "bf16", Kind.RS], whole["bf16", "bf16", Kind.AG]) == (full / 2, full / 2)


@pytest.mark.mpi
def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit_and_no_number_that_is_told(comm, tmp_path):
    needs(comm, 2)
    pipeline = min(comm.size, 2)
    plain = train_on(comm, tmp_path, *_layout(pipeline, "bf", "ready", "job.steps=3"))
    scaled = train_on(comm, tmp_path, *_layout(pipeline, "bf", "ready", "job.steps=3", "precision.loss_scale=1024.0"))
    if plain is not None:
        assert all(torch.equal(a, b) for a, b in zip(plain[1], scaled[1], strict=True))
    if comm.rank == 0:
        first, second = (_metrics(tmp_path, number) for number in (-2, -1))
        assert [line["loss_scale"] for line in second] == [1024.0] * 3
        for key in ("loss", "grad_norm"):
            assert [line[key] for line in first] == [line[key] for line in second]


def _metrics(folder, number):
    runs = sorted((path for path in folder.glob("run-*")), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for line in (runs[number] / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.mpi(min_size=2)
def test_an_overflow_in_fp16_is_left_out_on_all_ranks_until_the_scale_is_found(comm, tmp_path):
    needs(comm, 2)
    stages = 2
    scales, states = [], []

    def look(step, rank):
        if step == 0:
            rank.scale.value = 2.0**26  # times the logits' gradient that is beyond fp16
        scales.append(rank.scale.value)
        states.append(_bits(rank))

    more = ("job.steps=14", 'precision.compute="fp16"')
    result = train_on(comm, tmp_path, *_layout(stages, "bf", "ready", *more), before_step=look)
    same = comm.allgather(scales)
    if result is not None:
        assert same[0] == same[1] == scales
        skipped = scales.index(min(scales))
        assert 2 <= skipped <= 10
        assert scales == [2.0 ** max(26 - step, 26 - skipped) for step in range(14)]
        assert all(state == states[0] for state in states[: skipped + 1])
        assert states[skipped + 1] != states[0]
    if comm.rank == 0:
        lines = _metrics(tmp_path, -1)
        assert [line["skipped"] for line in lines] == [step < skipped for step in range(14)]
        assert [line["grad_norm"] is None for line in lines] == [step < skipped for step in range(14)]


def _bits(rank):
    """Return all that an update changes on a rank, to compare."""
    rank.engine.gather()
    parameters = [p for each in rank.parameters for p in each]
    kept = [value for p in parameters for value in state_of(rank.buckets.members, p)[2].values()]
    return [value.detach().float().numpy().tobytes() for value in (*parameters, *kept)]
