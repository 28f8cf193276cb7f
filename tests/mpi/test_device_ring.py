"""Sums over real ranks whose GPUs are played: kernels and copies end late; bits are those of the native module."""

import random

import pytest
import torch
from late_gpu import REAL, make_gpu

from hpcpipe.collective import CollectiveBucket, Group
from hpcpipe.collective.backend import OnGpu
from hpcpipe.collective.device_ring import DeviceBucket, DeviceGroup
from hpcpipe.collective.device_staged import StagedBucket


class LateKernels:
    """Adds as the definition says, when its stream comes to it."""

    def __init__(self, gpu):
        self._gpu = gpu

    def add(self, into, sources, stream):
        self._gpu.launch(lambda: into.copy_(_sum(sources)), stream)

    def pack(self, tensors, flat, accumulate, stream):
        def run():
            at = 0
            for tensor in tensors:
                part = flat[at : at + tensor.numel()]
                value = tensor.view(-1)
                part.copy_(_sum([part, value.to(part.dtype)]) if accumulate else value)
                at += tensor.numel()

        self._gpu.launch(run, stream)


def _kernels(gpu):
    if not REAL:
        return LateKernels(gpu)
    from hpcpipe.collective.device_kernels import make_kernels

    return make_kernels()


def _sum(sources):
    if sources[0].itemsize > 2:
        total = sources[0].numpy().copy()
        for source in sources[1:]:
            total += source.numpy()
        return torch.from_numpy(total)
    total = sources[0].float()
    for source in sources[1:]:
        total = total + source.float()
    return total.to(sources[0].dtype)


def _numbers(rank, length, dtype, again=0):
    """Return numbers of many magnitudes: another order of addition gives other bits."""
    draw = torch.Generator().manual_seed(1000 * again + rank)
    scale = torch.exp2(torch.randint(-8, 9, (length,), generator=draw).float())
    return (torch.randn(length, generator=draw) * scale).to(dtype)


@pytest.fixture
def gpu(comm):
    return make_gpu(comm.rank)


@pytest.fixture(params=["staged"] if REAL == "staged" else ["device", "staged"])
def make(request, comm, gpu):
    """Return what makes a bucket, and free what it needs at the end."""
    native = Group(comm)
    if request.param == "staged":
        side = gpu.stream()
        yield lambda flat, **_: StagedBucket(native, flat, gpu=gpu, compute=gpu.compute, side=side)
    else:
        group = DeviceGroup(comm, gpu=gpu, kernels=_kernels(gpu), compute=gpu.compute)
        yield lambda flat, **choices: DeviceBucket(group, flat, **choices)
        group.free()
    native.free()


def _native(comm, flat, algorithm):
    """Return the sum by the native module."""
    flat = flat.clone()
    bucket = CollectiveBucket(comm, flat, reduce_scatter=algorithm, all_gather="ring")
    bucket.start_all_reduce()
    bucket.wait()
    bucket.free()
    return flat


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize("block", [1, 5, 64, 1003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_have_the_bits_of_the_native_module(comm, gpu, make, algorithm, block, dtype):
    length = comm.size * block
    flat = torch.full((length,), 99.0, dtype=dtype, device=gpu.device)
    bucket = make(flat, reduce_scatter=algorithm, all_gather=algorithm, chunk_bytes=400)
    for again in range(3):
        mine = _numbers(comm.rank, length, dtype, again)
        expected = _native(comm, mine, algorithm)
        gpu.launch(lambda mine=mine: flat.copy_(mine))  # the tasks' last kernel, which has not run yet
        bucket.start_reduce_scatter()
        bucket.wait()
        assert torch.equal(flat[bucket.shard].cpu(), expected[bucket.shard])
        bucket.start_all_gather()
        bucket.wait()
        assert torch.equal(flat.cpu(), expected)
    gpu.launch(lambda: flat.copy_(mine))
    bucket.start_all_reduce()
    bucket.wait()
    assert torch.equal(flat.cpu(), expected)
    bucket.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_sums_are_rounded_once_as_in_the_native_module(comm, gpu, make, dtype):
    length = comm.size * 333
    flat = _numbers(comm.rank, length, dtype).to(gpu.device)
    expected = _native(comm, flat.cpu(), "direct")
    bucket = make(flat)
    bucket.start_all_reduce()
    bucket.wait()
    assert torch.equal(flat.cpu(), expected)
    bucket.free()


@pytest.mark.mpi(min_size=2)
def test_several_buckets_go_on_together_in_any_order_of_tests(comm, gpu, make):
    flats = [_numbers(comm.rank, comm.size * block, torch.float32, block) for block in (700, 3, 90)]
    expected = [_native(comm, flat, "ring") for flat in flats]
    flats = [flat.to(gpu.device) for flat in flats]
    buckets = [make(flat, chunk_bytes=256) for flat in flats]
    draw = random.Random(comm.rank)
    order = list(range(3))
    draw.shuffle(order)
    for index in order:
        buckets[index].start_all_reduce()
    left = set(order)
    while left:
        index = draw.choice(sorted(left))
        if buckets[index].test():
            left.remove(index)
    for flat, whole, bucket in zip(flats, expected, buckets, strict=True):
        assert torch.equal(flat.cpu(), whole)
        bucket.free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(bool(REAL), reason="a real GPU cannot be stopped")
def test_while_the_gpu_is_busy_nobody_blocks_and_nothing_is_done(comm, gpu, make):
    flat = torch.ones(comm.size * 8)
    bucket = make(flat)
    gpu.stopped = True
    gpu.launch(lambda: flat.fill_(2.0))
    bucket.start_all_reduce()
    assert not any(bucket.test() for _ in range(200))
    with pytest.raises(RuntimeError, match="still under way"):
        bucket.start_reduce_scatter()
    with pytest.raises(RuntimeError, match="under way"):
        bucket.free()
    gpu.stopped = False
    bucket.wait()
    assert torch.all(flat == 2.0 * comm.size)
    bucket.free()


@pytest.mark.mpi(min_size=2)
def test_ranks_with_different_buffers_are_told_so(comm, gpu, make):
    with pytest.raises(ValueError, match="equally long"):
        make(torch.zeros(comm.size * (2 + comm.rank % 2), device=gpu.device))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("gpu_aware", [False] if REAL == "staged" else [False, True])
def test_a_rank_s_backend_packs_behind_its_tasks_and_shares_what_buckets_need(comm, gpu, gpu_aware):
    group = Group(comm)
    backend = OnGpu(gpu, device=gpu.device, compute=gpu.compute, gpu_aware=gpu_aware, kernels=_kernels(gpu))
    flat = torch.full((comm.size * 6,), 5.0, device=gpu.device)
    empty = torch.zeros(0, device=gpu.device)
    buckets = [backend.bucket(group, each, in_turn=True) for each in (flat, empty)]
    first, second = torch.full((2, 2), 1.0, device=gpu.device), torch.full((3,), 2.0, device=gpu.device)
    backend.pack([first, second], flat[:7])
    backend.pack([first, second], flat[:7], accumulate=True)
    buckets[0].start_reduce_scatter()
    while not buckets[0].test():
        pass
    buckets[0].start_all_gather()
    while not buckets[0].test():
        pass
    expected = torch.cat([torch.full((4,), 2.0), torch.full((3,), 4.0), torch.full((comm.size * 6 - 7,), 5.0)])
    assert torch.equal(flat.cpu(), expected * comm.size)
    for bucket in buckets:
        bucket.free()
    backend.release(group)
    group.free()
    another = Group(comm)  # as when buckets are cut anew
    bucket = backend.bucket(another, flat, in_turn=True)
    made = list(backend._groups)
    assert made == ([another] if gpu_aware else []), "what the buckets of the first group shared is kept"
    bucket.free()
    backend.free()
    another.free()
