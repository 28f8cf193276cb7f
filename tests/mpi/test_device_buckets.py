"""Gradient buckets on a played GPU beside those on the CPU: packed, summed, updated and shared, to the same bits."""

import pytest
import torch
from late_gpu import REAL, make_gpu
from test_device_ring import _kernels

from hpcpipe.collective import Group
from hpcpipe.collective.backend import Native, OnGpu
from hpcpipe.plan import Kind
from hpcpipe.train.bucket import Bucket
from hpcpipe.train.precision import Types

SHAPES = [(7, 5), (3,), (11, 2)]
BF16 = Types(torch.bfloat16, torch.float32)
NARROW = Types(torch.bfloat16, torch.bfloat16)


class Ordered(OnGpu):
    """What follows a pack here is done by torch at once, which on a GPU is ordered behind it on the tasks' stream."""

    def pack(self, tensors, flat, accumulate=False):
        super().pack(tensors, flat, accumulate)
        self._gpu.synchronize()


def _adam(parameter, _decay):
    return torch.optim.Adam([parameter], lr=0.1)


def _gradients(comm, step, microbatch, device, dtype):
    draw = torch.Generator().manual_seed(100 * step + 10 * microbatch + comm.rank)
    return [torch.randn(shape, generator=draw).to(device, dtype) for shape in SHAPES]


def _train(comm, backend, types, uses):
    """Train for three steps of two micro-batches and return the parameters."""
    group = Group(comm)
    draw = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=draw).to(backend.device)) for shape in SHAPES]
    bucket = Bucket([parameters] * uses, replicas=group, make_optimizer=_adam, types=types, backend=backend)
    for step in range(3):
        for microbatch in range(2):
            for use in range(uses):
                gradients = _gradients(comm, step, microbatch + 5 * use, backend.device, types.compute)
                bucket.add(use, gradients, begin=0, first=microbatch == 0)
        for kind in (Kind.RS, Kind.AG):
            bucket.start(kind)
            while not bucket.test():
                pass
            if kind is Kind.RS:
                bucket.measure()
                assert bucket.square_norm > 0
                bucket.update(0.1, 0.5)
    bucket.free()
    backend.free()
    group.free()
    return [parameter.detach().cpu().clone() for parameter in parameters]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("gpu_aware", [False] if REAL == "staged" else [False, True])
@pytest.mark.parametrize("types", [Types(), BF16, NARROW], ids=["fp32", "bf16", "bf16 on the wire"])
@pytest.mark.parametrize("uses", [1, 2])
def test_buckets_on_a_gpu_train_to_the_bits_of_those_on_a_cpu(comm, gpu_aware, types, uses):
    gpu = make_gpu(comm.rank)
    backend = Ordered(gpu, device=gpu.device, compute=gpu.compute, gpu_aware=gpu_aware, kernels=_kernels(gpu))
    found = _train(comm, backend, types, uses)
    expected = _train(comm, Native(), types, uses)
    if REAL:  # its Adam and its fused updates round otherwise
        assert all(torch.allclose(a.float(), b.float(), atol=0.05) for a, b in zip(found, expected, strict=True))
    else:
        assert all(map(torch.equal, found, expected))
