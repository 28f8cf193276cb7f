"""Tensor-parallel slices train like one rank: torch's losses and parameters, the same bits under every schedule."""

import pytest
import torch
from layers import disturb
from test_replay import _orders as orders
from test_replay import _run as run
from training import LOGGED, load, needs, on_four, reference, train_on

from hpcpipe.models.tensor_parallel import whole_of
from hpcpipe.plan import Kind
from hpcpipe.train import Layout

BASE = ("job.steps=4", "comm.bucket_mb=0.02")
LLAMA = ('model.kind="llama"', "model.kv_heads=2", "model.mlp_dim=48")
LAYOUTS = [
    (("parallel.tensor=2",), ("bf", "ready")),
    (("parallel.tensor=2", 'model.recompute="all"', "model.tied=true"), ("zb-h1", "ready")),
    (("parallel.tensor=4",), ("1f1b", "fixed")),
    (("parallel.tensor=2", "parallel.pipeline=2"), ("zbv", "ready")),
    (("parallel.tensor=2", "parallel.pipeline=2", "model.tied=true"), ("critical", "ready")),
    (("parallel.tensor=2", "parallel.pipeline=2"), ("interleaved", "fixed")),
    (("parallel.tensor=2", "parallel.data=2", "batch.microbatches=3"), ("bfw", "ready")),
    ((*LLAMA, "parallel.tensor=2"), ("bf", "ready")),
    ((*LLAMA, "parallel.tensor=2", "parallel.pipeline=2", "model.tied=true"), ("zb-h1", "ready")),
]


def _settings(sizes, hint, dispatch, *more):
    checked = () if "parallel.tensor=1" in sizes else ("comm.check_collectives=true",)
    return [*BASE, *checked, *sizes, f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"', *more]


def _whole(comm, result, job):
    """Return on rank 0 the parameters of all layers by name, of slices put together, and check the others' bits."""
    named = {}
    if result is not None:
        mesh, layout = result[2], Layout.of(job)
        rest, number = divmod(comm.rank, job.parallel.tensor)
        stage, replica = divmod(rest, job.parallel.data)
        names = [layout.layers[i].name for piece in layout.pieces[stage] for i in piece]
        for name, module in zip(names, mesh.modules, strict=True):
            for inner, value in module.named_parameters():
                key = (f"{name}.{inner}", replica, number)
                named[key] = value.detach().clone(), getattr(value, "sliced", None)
    gathered = {key: value for each in comm.allgather(named) for key, value in each.items()}
    found = {}
    for name, replica, number in sorted(gathered):
        value, sliced = gathered[name, replica, number]
        if sliced is None:
            assert torch.equal(value, gathered[name, 0, 0][0]), f"{name} differs on slice {number} of replica {replica}"
            found[name] = value
        elif (replica, number) == (0, 0):
            slices = [gathered[name, 0, n][0] for n in range(sliced.count)]
            found[name] = whole_of(slices, sliced)
        else:
            assert torch.equal(value, gathered[name, 0, number][0])
    return found


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("sizes", "schedule"), LAYOUTS)
def test_losses_and_parameters_are_those_of_one_process(comm, tmp_path, sizes, schedule):
    settings = _settings(sizes, *schedule)
    job = load(tmp_path, *settings)
    if job.parallel.ranks != comm.size:
        pytest.skip(f"is for {job.parallel.ranks} ranks")
    losses, net = reference(job) if comm.rank == 0 else (None, None)
    result = train_on(comm, tmp_path, *settings, before_step=disturb(1))
    found = _whole(comm, result, job)
    if comm.rank == 0:
        assert result[0] == pytest.approx(losses, rel=1e-6)
        for layer, module in zip(Layout.of(job).layers, net, strict=True):
            for inner, value in module.named_parameters():
                # AdamW divides by the gradient's size, so where a gradient is next to nothing its rounding shows
                torch.testing.assert_close(found[f"{layer.name}.{inner}"], value.detach(), rtol=1e-4, atol=2e-5)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("pipeline", [1, 2])
def test_parameters_after_one_step_of_plain_gradient_descent_differ_by_rounding_only(comm, tmp_path, pipeline):
    sizes = ("parallel.tensor=2", f"parallel.pipeline={pipeline}")
    if 2 * pipeline != comm.size:
        pytest.skip(f"is for {2 * pipeline} ranks")
    plain = ['optimizer.name="sgd"', "optimizer.lr=1.0", 'optimizer.schedule="constant"', "optimizer.warmup=0"]
    found = []
    for size in (("parallel.tensor=1",), sizes):
        settings = _settings(size, "bf", "ready", *plain, "job.steps=3")
        job = load(tmp_path, *settings)
        found.append(_whole(comm, train_on(comm, tmp_path, *settings), job))
    if comm.rank == 0:
        whole, sliced = found
        for name, value in whole.items():
            torch.testing.assert_close(sliced[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.mpi(min_size=2)
def test_ready_has_the_bits_of_fixed_whatever_the_hint_and_the_timing(comm, tmp_path):
    on_four(comm)
    sizes = ("parallel.tensor=2", "parallel.pipeline=2", 'schedule.in_flight="2x"')
    fixed = ("parallel.tensor=2", sizes[1])
    bits = None
    runs = [(fixed, "1f1b", "fixed")]
    runs += [(sizes, hint, "ready") for hint in ("bf", "bfw", "critical")]
    runs += [((*sizes, 'schedule.agreement="propose"'), "1f1b", "ready")]
    for seed, (size, hint, dispatch) in enumerate(runs):
        settings = _settings(size, hint, dispatch, "model.layers=4")
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed, share=0.3, longest_s=0.01))
        mine = {} if result is None else dict(_by_name(comm, result, load(tmp_path, *settings)))
        found = {key: value for each in comm.allgather(mine) for key, value in each.items()}
        bits = bits or found
        assert set(found) == set(bits)
        assert all(torch.equal(found[key], bits[key]) for key in bits), hint


def _by_name(comm, result, job):
    layout = Layout.of(job)
    stage, number = divmod(comm.rank, job.parallel.tensor)
    names = [layout.layers[i].name for piece in layout.pieces[stage] for i in piece]
    for name, module in zip(names, result[2].modules, strict=True):
        for inner, value in module.named_parameters():
            yield (f"{name}.{inner}", number), value.detach().clone()


@pytest.mark.mpi(min_size=2)
def test_the_gradient_norm_counts_every_slice_once_and_what_is_whole_once(comm, tmp_path):
    needs(comm, 2)
    norms = []
    for sizes in (("parallel.tensor=1",), ("parallel.tensor=2",)):
        seen = []
        settings = _settings(sizes, "bf", "ready", "job.steps=2")
        train_on(comm, tmp_path, *settings, before_step=lambda _s, rank, s=seen: s.append(rank.buckets.square_norm))
        norms.append(sum(comm.allgather(seen[-1] if seen else 0.0)))
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.mpi(min_size=2)
def test_dropout_is_one_outside_the_slices_and_does_not_depend_on_the_pipeline(comm, tmp_path):
    """_whole checks that what is not sliced has the same bits on both slices; with other masks it would not."""
    on_four(comm)
    more = ("model.dropout=0.2", 'model.recompute="all"')
    losses = []
    for pipeline in (1, 2):
        settings = _settings(("parallel.tensor=2", f"parallel.pipeline={pipeline}"), "bf", "ready", *more)
        result = train_on(comm, tmp_path, *settings, before_step=disturb(2))
        _whole(comm, result, load(tmp_path, *settings))
        losses.append(comm.bcast(result[0] if comm.rank == 0 else None))
    none = train_on(comm, tmp_path, *_settings(("parallel.tensor=2",), "bf", "ready"))
    assert losses[0] == pytest.approx(losses[-1], rel=1e-6)
    if comm.rank == 0:
        assert none[0] != pytest.approx(losses[0], rel=1e-4)


@pytest.mark.mpi(min_size=2)
def test_slices_in_bf16_under_a_clipped_norm_follow_one_rank(comm, tmp_path):
    """Sums over slices are made in fp32; what is whole keeps the same bits on both (checked by _whole)."""
    needs(comm, 2)
    more = ('precision.compute="bf16"', "optimizer.clip=0.5", 'model.recompute="all"')
    losses = []
    for tensor in (1, 2):
        settings = _settings((f"parallel.tensor={tensor}",), "zb-h1", "ready", *more)
        result = train_on(comm, tmp_path, *settings)
        _whole(comm, result, load(tmp_path, *settings))
        losses.append(result[0] if comm.rank == 0 else [0.0])
    assert losses[1] == pytest.approx(losses[0], rel=3e-3)


@pytest.mark.mpi(min_size=4)
def test_replicas_of_slices_with_late_messages_neither_hang_nor_differ(comm, tmp_path):
    """Sums over slices and over replicas meet in other orders on every rank (NVIDIA/nccl 195, 574, 592; rccl 2191)."""
    sizes = ("parallel.tensor=2", "parallel.data=2", "batch.microbatches=4", "comm.bucket_mb=0.005")
    bits = None
    for seed, (hint, dispatch) in enumerate([("interleaved", "fixed"), ("interleaved", "ready"), ("bfw", "ready")]):
        settings = _settings(sizes, hint, dispatch)
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed, share=0.5, longest_s=0.01))
        found = _whole(comm, result, load(tmp_path, *settings))
        bits = bits or found
        assert all(torch.equal(found[name], bits[name]) for name in bits), hint
        agreement = result[2].agreement
        assert (agreement is None) == (dispatch == "fixed")
        assert agreement is None or agreement.counts.rounds >= 4 * 4 * 2


@pytest.mark.mpi(min_size=4)
def test_a_run_with_slices_can_be_replayed(comm, tmp_path):
    settings = _settings(("parallel.tensor=2", "parallel.pipeline=2"), "bf", "ready", 'schedule.accumulate="arrival"')
    job = load(tmp_path, *settings, LOGGED)
    source, parameters = run(comm, tmp_path, job, before_step=disturb(3, share=0.4, longest_s=0.01))
    again, same = run(comm, tmp_path, job, replay=source, before_step=disturb(4, share=0.4, longest_s=0.01))
    assert all(torch.equal(a, b) for a, b in zip(parameters, same, strict=True))
    if comm.rank == 0:
        recorded = orders(source)[0]
        assert orders(again)[0] == recorded
        computed = {key: [task for task in tasks if task.kind <= Kind.W] for key, tasks in recorded.items()}
        for (rank, step), tasks in computed.items():
            assert tasks == computed[rank - rank % 2, step], "the slices ran other orders"
