"""The kernels of gradient buckets: their arithmetic on a CPU beside numpy's and torch's, and that NVRTC compiles them.

What they do on a GPU is in tests/gpu.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hpcpipe.collective.device_kernels import (
    MOST_PARTS,
    TYPES,
    add_line,
    kernel_text,
    move_line,
    parts_of,
    runs,
    sources_of,
)

SHIM = Path(__file__).parents[1] / "cuda_on_cpu.hpp"
ADDS = [(f"add_{'many' if many else 'two'}_{number}", number, many) for number in TYPES.values() for many in (0, 1)]
MOVES = [
    (f"move_{flat}_{part}_{into_flat:d}{adds:d}", flat, part, into_flat, adds)
    for flat, part in product(TYPES.values(), repeat=2)
    for into_flat, adds in ((True, False), (True, True), (False, False))
]


def _all_lines() -> str:
    lines = [add_line(name, number, many=bool(many)) for name, number, many in ADDS]
    return "".join(lines + [move_line(n, flat, part, into_flat=i, adds=a) for n, flat, part, i, a in MOVES])


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Compile every kernel for the CPU; return what launches one by its name."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("not run: no C++ compiler")
    u64 = "hpcpipe_u64"
    wrappers = []
    for name, _, many in ADDS:
        given = "const Sources* sources" if many else "const void* a, const void* b"
        used = "*sources" if many else "a, b"
        wrappers.append(
            f'extern "C" void run_{name}(unsigned blocks, unsigned threads, void* into, {given}, {u64} length) '
            f"{{ launch({name}, blocks, threads, into, {used}, length); }}\n"
        )
    wrappers += [
        f'extern "C" void run_{name}(unsigned blocks, unsigned threads, void* flat, const Parts* parts) '
        f"{{ launch({name}, blocks, threads, flat, *parts); }}\n"
        for name, *_ in MOVES
    ]
    folder = tmp_path_factory.mktemp("kernels")
    source = folder / "kernels.cpp"
    source.write_text(f'#include "{SHIM}"\n{kernel_text()}{_all_lines()}{"".join(wrappers)}')
    flags = [
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        "-Wno-unknown-pragmas",
        "-Wno-unused-function",
    ]
    library = folder / "kernels.so"
    subprocess.run([compiler, *flags, "-o", library, source], check=True, timeout=110)
    loaded = ctypes.CDLL(str(library))

    def run(name: str, *arguments: Any, blocks: int = 3, threads: int = 32) -> None:
        getattr(loaded, f"run_{name}")(ctypes.c_uint(blocks), ctypes.c_uint(threads), *arguments)

    return run


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _struct(array: np.ndarray) -> Any:
    return ctypes.byref((ctypes.c_char * array.nbytes).from_buffer(array))


def _numbers(length: int, dtype: torch.dtype, seed: int, *, offset: int = 0) -> torch.Tensor:
    """Return numbers of many magnitudes that begin `offset` elements after an aligned address."""
    draw = torch.Generator().manual_seed(seed)
    scale = torch.exp2(torch.randint(-6, 7, (length,), generator=draw).float())
    memory = torch.empty(length + offset + 16, dtype=dtype)
    assert memory.data_ptr() % 64 == 0
    memory[offset : offset + length] = (torch.randn(length, generator=draw) * scale).to(dtype)
    return memory[offset : offset + length]


def _sum(sources: list[torch.Tensor]) -> torch.Tensor:
    """The definition: in fp32 (fp64 for fp64), from left to right, rounded once."""
    total = sources[0].to(torch.float64 if sources[0].dtype == torch.float64 else torch.float32, copy=True)
    for source in sources[1:]:
        total = total + source
    return total.to(sources[0].dtype)


LENGTHS = [0, 1, 7, 8, 63, 64, 65, 1000, 4099]


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_two_buffers_of_any_length_and_alignment_are_added_to_the_bit(
    kernels: Callable[..., None], dtype: torch.dtype, offset: int
) -> None:
    for length in LENGTHS:
        a, b = (_numbers(length, dtype, seed, offset=offset) for seed in (1, 2))
        expected, b_before = _sum([a, b]), b.clone()
        kernels(f"add_two_{TYPES[dtype]}", _at(a), _at(a), _at(b), ctypes.c_ulonglong(length))  # in place
        assert torch.equal(a, expected)
        assert torch.equal(b, b_before)


@pytest.mark.parametrize("dtype", TYPES, ids=TYPES.values())
@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_many_buffers_are_added_in_order_and_rounded_once(
    kernels: Callable[..., None], dtype: torch.dtype, count: int
) -> None:
    for length, offset in product(LENGTHS, (0, 1)):
        sources = [_numbers(length, dtype, seed, offset=offset) for seed in range(count)]
        expected, into = _sum(sources), sources[-1]
        kernels(f"add_many_{TYPES[dtype]}", _at(into), _struct(sources_of(sources)), ctypes.c_ulonglong(length))
        assert torch.equal(into, expected)


def test_16_bit_numbers_and_their_limits_are_rounded_as_torch_rounds_them(kernels: Callable[..., None]) -> None:
    """Every bit pattern: normal, denormal, infinite, and no number."""
    for dtype in (torch.float16, torch.bfloat16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        other = every.flip(0).contiguous()
        expected, into = _sum([every, other]), torch.empty_like(every)
        length = ctypes.c_ulonglong(len(every))
        kernels(f"add_two_{TYPES[dtype]}", _at(into), _at(every), _at(other), length)
        same = (into.view(torch.int16) == expected.view(torch.int16)) | (into.isnan() & expected.isnan())
        assert same.all()


SIZES = [5, 1, 0, 4096, 17, 8191, 64, 3]


@pytest.mark.parametrize(("flat_type", "part_type"), list(product(TYPES, repeat=2)), ids=lambda dtype: TYPES[dtype])
def test_tensors_of_odd_sizes_are_packed_added_and_unpacked_by_one_kernel(
    kernels: Callable[..., None], flat_type: torch.dtype, part_type: torch.dtype
) -> None:
    name = f"move_{TYPES[flat_type]}_{TYPES[part_type]}"
    tensors = [_numbers(size, part_type, seed, offset=seed % 3) for seed, size in enumerate(SIZES)]
    length = sum(SIZES)
    through = torch.float64 if flat_type == torch.float64 else torch.float32
    joined = torch.cat(tensors).to(through)
    for offset in (0, 1):
        flat = _numbers(length + 5, flat_type, 99, offset=offset)
        before = flat.clone()
        kernels(f"{name}_11", _at(flat), _struct(parts_of(tensors)))
        assert torch.equal(flat[:length], (before[:length].to(through) + joined).to(flat_type))
        kernels(f"{name}_10", _at(flat), _struct(parts_of(tensors)))
        assert torch.equal(flat[:length], joined.to(flat_type))
        assert torch.equal(flat[length:], before[length:])
        again = [torch.full_like(tensor, 7.0) for tensor in tensors]
        kernels(f"{name}_00", _at(flat), _struct(parts_of(again)))
        back = flat[:length].to(torch.float64 if part_type == torch.float64 else torch.float32).to(part_type)
        assert torch.equal(torch.cat(again), back)


def test_more_tensors_than_a_kernel_takes_and_other_types_begin_a_new_run() -> None:
    tensors = [torch.zeros(1)] * (MOST_PARTS + 1) + [torch.zeros(1, dtype=torch.float16)] * 2 + [torch.zeros(3)]
    found = runs(tensors)
    assert [(number, len(run)) for number, run in found] == [
        ("Float32", MOST_PARTS),
        ("Float32", 1),
        ("Float16", 2),
        ("Float32", 1),
    ]


def _nvrtc() -> Any:
    """Return NVRTC, which needs no GPU, or skip."""
    if find_spec("cupy") is None:
        pytest.skip("not run: cupy is not installed, so there is no NVRTC to ask")
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        pytest.skip(f"not run: cupy finds no NVRTC ({error})")
    return nvrtc


@pytest.mark.filterwarnings("ignore")  # cupy's, of what else it does not find
@pytest.mark.parametrize("architecture", ["compute_80", "compute_90"])
def test_nvrtc_compiles_every_kernel_moves_16_bytes_at_once_and_keeps_denormals(architecture: str) -> None:
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(kernel_text() + _all_lines(), "kernels.cu", (), ())
    try:
        options = f"--gpu-architecture={architecture}", "--std=c++17", "-ftz=true"  # the last is cupy's
        nvrtc.compileProgram(program, options)
    except nvrtc.NVRTCError:
        pytest.fail(nvrtc.getProgramLog(program))
    ptx = nvrtc.getPTX(program)
    ptx = ptx.decode() if isinstance(ptx, bytes) else ptx
    bodies = {name: ptx.partition(f".entry {name}(")[2].partition(".entry")[0] for name, *_ in (*ADDS, *MOVES)}
    assert all(bodies.values())
    without = [name for name, body in bodies.items() if "ld.global.v4" not in body and "ld.global.v2.f64" not in body]
    assert [name for name in without if name.startswith("add_")] == []
    assert [name for name, body in bodies.items() if ".ftz" in body] == []
