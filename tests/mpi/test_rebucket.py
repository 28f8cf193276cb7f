"""Buckets made anew between two steps: parameters and optimizer state go on as if nothing had happened."""

import numpy as np
import pytest
import torch
from kept_state import state_of
from mpi4py import MPI
from training import needs, on_four, rest, train_on

from hpcpipe.train.bucket import MASTER
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.precision import Types

SIZES = (4_000, 1, 60_000, 10**9, 15_000)
"""Bytes: some of a layer, one parameter each, several layers, all in one."""


def _settings(pipeline, replicas, *more):
    sizes = (f"parallel.pipeline={pipeline}", f"parallel.data={replicas}", f"batch.microbatches={12 // replicas}")
    common = ("comm.bucket_mb=0.02", 'schedule.hint="bf"', "batch.microbatch_size=1", "job.steps=7")
    return [*common, *sizes, *more]


def _anew(counts):
    """Return what cuts the buckets anew before every step but the first."""

    def before_step(step, rank):
        counts.append(len(rank.buckets))
        if step > 0:
            rank.engine.drain()
            rank.buckets.rebucket(SIZES[step % len(SIZES)])

    return before_step


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("pipeline", "replicas", "more"),
    [
        (1, 2, ('optimizer.name="adamw"',)),
        (1, 2, ('optimizer.name="sgd"', "optimizer.momentum=0.9", "optimizer.lr=0.05")),
        (1, 2, ('precision.compute="bf16"', 'precision.reduce="bf16"')),
        (1, 2, ("comm.split_allreduce=false",)),
        (1, 2, ("model.tied=true",)),
        (2, 2, ("model.tied=true", 'precision.compute="bf16"')),
    ],
)
def test_two_replicas_train_to_the_same_bits_when_buckets_are_made_anew(comm, tmp_path, pipeline, replicas, more):
    needs(comm, pipeline * replicas)
    settings, counts = _settings(pipeline, replicas, *more), []
    expected = train_on(comm, tmp_path, *settings)
    result = train_on(comm, tmp_path, *settings, before_step=_anew(counts))
    if result is not None:
        assert len(set(counts)) > 2, "the sizes made no difference"
        assert result[0] == expected[0]
        assert all(torch.equal(a, b) for a, b in zip(result[1], expected[1], strict=True))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("replicas", [3, 4])
def test_three_and_four_replicas_train_the_same_to_rounding(comm, tmp_path, replicas):
    needs(comm, replicas)
    # Adam divides by the root of a gradient's square: eps keeps what is only rounding from deciding signs.
    settings = _settings(1, replicas, "optimizer.eps=1e-4")
    expected = train_on(comm, tmp_path, *settings)
    result = train_on(comm, tmp_path, *settings, before_step=_anew([]))
    if result is not None:
        for mine, theirs in zip(result[1], expected[1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scope", ["global", "stage"])
def test_a_clipped_gradient_stays_the_same_to_rounding(comm, tmp_path, scope):
    on_four(comm)
    pipeline = comm.size // 2
    settings = _settings(pipeline, 2, "optimizer.clip=0.5", f'optimizer.clip_scope="{scope}"', "optimizer.eps=1e-4")
    expected = train_on(comm, tmp_path, *settings)
    result = train_on(comm, tmp_path, *settings, before_step=_anew([]))
    if result is not None:
        for mine, theirs in zip(result[1], expected[1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def _made(comm, parameters, bucket_bytes, *, types=Types()):  # noqa: B008 - a tuple
    return FusionBuckets(
        parameters,
        comm=comm,
        bucket_bytes=bucket_bytes,
        make_optimizer=lambda parameter, _decay: _adam_like(parameter),
        rate=lambda _step: 0.1,
        types=types,
    )


def _adam_like(parameter):
    optimizer = torch.optim.Adam([parameter])
    moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    return optimizer


def _mark(buckets, parameters, kinds):
    """Write into every element of the state a number that says whose it is and where in it."""
    for number, parameter in enumerate(parameters):
        begin, end, states = state_of(buckets.members, parameter)
        for at, kind in enumerate(kinds):
            if begin < end:
                with torch.no_grad():
                    states[kind].copy_(_marks(number, at, begin, end))


def _marks(number, at, begin, end):
    return torch.arange(begin, end, dtype=torch.float32) + 1000 * number + 100_000 * at


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_every_element_of_the_state_goes_to_the_shard_that_keeps_it_from_now_on(comm, compute):
    torch.manual_seed(0)
    shapes = [(7, 5), (5,), (64, 3), (1,), (11, 11), (2, 2), (97,)]
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    values = [p.detach().to(compute).clone() for p in parameters]
    kinds = ["exp_avg", "exp_avg_sq", *([MASTER] if compute is not torch.float32 else [])]
    replicas = MPI.Intracomm(comm.Dup())
    buckets = _made(replicas, [parameters[:3], parameters[3:]], 300, types=Types(compute, torch.float32))
    _mark(buckets, parameters, kinds)
    for bucket in buckets.members:
        bucket.states["step"].fill_(5)
    for size in (1, 10**6, 200, 900, 300):
        buckets.rebucket(size)
        owned = np.zeros(len(parameters))
        for number, parameter in enumerate(parameters):
            begin, end, states = state_of(buckets.members, parameter)
            owned[number] = end - begin
            assert states["step"] == 5
            for at, kind in enumerate(kinds):
                assert torch.equal(states[kind], _marks(number, at, begin, end)), (size, number, kind)
        whole = replicas.allreduce(owned)
        assert whole.tolist() == [p.numel() for p in parameters], "an element is kept by no rank, or by two"
        assert all(torch.equal(p, value) for p, value in zip(parameters, values, strict=True))
    rest(replicas)
    buckets.free()
    replicas.Free()


@pytest.mark.mpi(min_size=2)
def test_a_shard_of_padding_that_a_checkpoint_knew_nothing_of_takes_the_count_of_steps_of_the_others(comm):
    parameters = [torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))]
    replicas = MPI.Intracomm(comm.Dup())
    buckets = _made(replicas, [parameters], 1)
    if replicas.rank == 0:  # of one element only rank 0's shard is no padding
        for bucket in buckets.members:
            bucket.states["step"].fill_(5)
    buckets.rebucket(10**6)
    (bucket,) = buckets.members
    assert bucket.states["step"] == 5
    rest(replicas)
    buckets.free()
    replicas.Free()


@pytest.mark.mpi(min_size=2)
def test_a_size_that_changes_nothing_leaves_the_buckets_alone(comm):
    parameters = [torch.nn.Parameter(torch.zeros(10)) for _ in range(4)]
    replicas = MPI.Intracomm(comm.Dup())
    buckets = _made(replicas, [parameters], 80)
    before = list(buckets.members)
    assert not buckets.rebucket(100)
    assert list(buckets.members) == before
    assert buckets.fused_bytes == 160
    assert buckets.rebucket(160)
    assert len(buckets) == 1
    rest(replicas)
    buckets.free()
    replicas.Free()


@pytest.mark.mpi(min_size=2)
def test_while_buckets_are_made_anew_no_rank_holds_the_state_of_more_than_one_twice(comm):
    count, size = 8, 1000
    parameters = [torch.nn.Parameter(torch.zeros(size)) for _ in range(count)]
    replicas = MPI.Intracomm(comm.Dup())
    buckets = _made(replicas, [parameters], 4 * size)
    kept = buckets.state_bytes
    most, add = [0], buckets._add_bucket
    alive = {id(each): each for each in buckets.members}
    for each in buckets.members:
        each.free = lambda each=each, free=each.free: (free(), alive.pop(id(each)))

    def watched(members):
        made = add(members)
        alive[id(made)] = made
        most[0] = max(most[0], sum(each.state_bytes for each in alive.values()))
        return made

    buckets._add_bucket = watched
    buckets.rebucket(2 * 4 * size)
    assert buckets.state_bytes <= kept
    assert most[0] <= kept + 2 * 2 * 4 * -(-2 * size // replicas.size)  # two moments of a new bucket's shard
    rest(replicas)
    buckets.free()
    replicas.Free()
