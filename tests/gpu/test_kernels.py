"""On a real GPU: the kernels of gradient buckets beside the definition in torch, and NCCL with one rank."""

from importlib.util import find_spec
from itertools import product

import pytest
import torch

from hpcpipe.collective.device_kernels import MOST_PARTS, TYPES, CupyKernels, TorchKernels

pytestmark = pytest.mark.gpu
NEEDS_CUPY = pytest.mark.skipif(find_spec("cupy") is None, reason="not run: cupy is not installed")
LENGTHS = [0, 1, 7, 8, 4099, 1 << 20, (1 << 22) + 13]


@pytest.fixture(params=[pytest.param("cupy", marks=NEEDS_CUPY), "torch"])
def kernels(request):
    return CupyKernels() if request.param == "cupy" else TorchKernels()


@pytest.fixture
def stream():
    return torch.cuda.Stream()


def _numbers(length, dtype, seed, offset=0):
    draw = torch.Generator(device="cuda").manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, (length,), generator=draw, device="cuda").float())
    memory = torch.zeros(length + offset, dtype=dtype, device="cuda")
    memory[offset:] = (torch.randn(length, generator=draw, device="cuda") * scale).to(dtype)
    return memory[offset:]


def _sum(sources):
    wide = torch.float64 if sources[0].dtype == torch.float64 else torch.float32
    total = sources[0].cpu().to(wide, copy=True)
    for source in sources[1:]:
        total = total + source.cpu()
    return total.to(sources[0].dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@pytest.mark.parametrize("count", [2, 3, 8])
def test_sums_have_the_bits_of_the_cpu(kernels, stream, dtype, count):
    for length, offset in product(LENGTHS, (0, 1)):
        sources = [_numbers(length, dtype, seed, offset) for seed in range(count)]
        expected = _sum(sources)
        torch.cuda.synchronize()
        kernels.add(sources[-1], sources, stream)
        stream.synchronize()
        assert torch.equal(sources[-1].cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_numbers_of_every_pattern_are_added_as_on_the_cpu(kernels, stream, dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    other = every.flip(0).contiguous()
    expected = (every.float() + other.float()).to(dtype)
    sources, into = [every.cuda(), other.cuda()], torch.empty(len(every), dtype=dtype, device="cuda")
    torch.cuda.synchronize()
    kernels.add(into, sources, stream)
    stream.synchronize()
    found = into.cpu()
    same = (found.view(torch.int16) == expected.view(torch.int16)) | (found.isnan() & expected.isnan())
    assert same.all()


def test_denormal_numbers_are_not_flushed_to_zero(kernels, stream):
    """cupy tells NVRTC to flush them in fp32; the kernels do not listen."""
    least = 2.0**-149
    sources = [torch.full((1000,), times * least, device="cuda") for times in (3.0, -1.0, 5.0)]
    flat = torch.full((1000,), least, device="cuda")
    torch.cuda.synchronize()
    kernels.add(sources[1], sources[:2], stream)
    kernels.add(sources[2], sources, stream)
    kernels.pack([sources[2]], flat, True, stream)
    stream.synchronize()
    assert torch.equal(sources[1].cpu(), torch.full((1000,), 2 * least))
    assert torch.equal(sources[2].cpu(), torch.full((1000,), 10 * least))
    assert torch.equal(flat.cpu(), torch.full((1000,), 11 * least))


SIZES = [5, 1, 0, 4096, 17, 100_003, 64, 3]


@pytest.mark.parametrize(("flat_type", "part_type"), list(product(TYPES, repeat=2)), ids=lambda dtype: TYPES[dtype])
def test_tensors_are_packed_added_and_unpacked(kernels, stream, flat_type, part_type):
    tensors = [_numbers(size, part_type, seed, seed % 3) for seed, size in enumerate(SIZES)]
    tensors += [torch.ones(1, dtype=part_type, device="cuda")] * MOST_PARTS  # more than one kernel takes
    wide = torch.float64 if flat_type == torch.float64 else torch.float32
    joined = torch.cat(tensors).cpu().to(wide)
    flat = torch.zeros(len(joined) + 3, dtype=flat_type, device="cuda")
    torch.cuda.synchronize()
    kernels.pack(tensors, flat, False, stream)
    stream.synchronize()
    once = joined.to(flat_type)
    assert torch.equal(flat[: len(joined)].cpu(), once)
    kernels.pack(tensors, flat, True, stream)
    stream.synchronize()
    assert torch.equal(flat[: len(joined)].cpu(), (once.to(wide) + joined).to(flat_type))
    assert not flat[len(joined) :].any()
    again = [torch.zeros_like(tensor) for tensor in tensors]
    torch.cuda.synchronize()
    kernels.unpack(flat, again, stream)
    stream.synchronize()
    back = flat[: len(joined)].cpu().to(torch.float64 if part_type == torch.float64 else torch.float32).to(part_type)
    assert torch.equal(torch.cat(again).cpu(), back)


@NEEDS_CUPY
def test_nccl_with_one_rank_leaves_a_buffer_as_it_was():
    from mpi4py import MPI

    from hpcpipe.collective.nccl import NcclBucket, NcclGroup, NcclMissingError
    from hpcpipe.device.gpu import TorchGpu

    gpu = TorchGpu(0)
    try:
        group = NcclGroup(MPI.COMM_SELF, gpu=gpu, compute=torch.cuda.current_stream())
    except NcclMissingError as error:
        pytest.skip(f"not run: {error}")
    for dtype in TYPES:
        flat = torch.arange(64, device="cuda").to(dtype)
        bucket = NcclBucket(group, flat)
        bucket.start_all_reduce()
        bucket.wait()
        assert torch.equal(flat.cpu(), torch.arange(64).to(dtype))
        bucket.free()
    group.free()
