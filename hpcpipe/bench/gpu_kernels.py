"""The kernels of gradient buckets on one GPU beside a plain copy in its memory: sums of a ring, packs and unpacks.

All of them only move memory, so the share of the copy's rate is what counts. Without a GPU it says so.
"""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from hpcpipe.bench.table import BenchTable, Column, Row

if TYPE_CHECKING:
    import torch

    from hpcpipe.collective.device_kernels import Kernels

STEPS = 20
LAUNCHES = 10
"""In one measurement, so that the launches of the next ones hide behind the first."""

MEGABYTES = (25, 500)
"""A usual bucket, some of which may lie in the GPU's cache, and one that cannot."""

WIDTH = 2048
SOURCES = 4

Call = Callable[[], None]


def run(*, steps: int = STEPS, quick: bool = False, progress: Callable[[], object] = lambda: None) -> BenchTable:
    """Measure on this process's first GPU; `quick` leaves the large buffer out."""
    import torch

    from hpcpipe.collective.device_kernels import TYPES, CupyKernels, make_kernels
    from hpcpipe.device.gpu import num_gpus

    columns = (
        Column("kernel"),
        Column("type"),
        Column("MB", digits=0),
        Column("time", "us", 1),
        Column("rate", "GB/s", 0),
        Column("of a copy", "x", 2),
    )
    title = "kernels of gradient buckets beside a copy in a GPU's memory"
    if not num_gpus():
        why = f"no GPU here: not run (torch {torch.__version__} sees none)"
        return BenchTable(name="gpu-kernels", title=title, columns=columns, rows=(), notes=(why,))
    device = torch.device("cuda", 0)
    kernels = make_kernels(device)
    stream = torch.cuda.Stream(device)
    rows: list[Row] = []
    for megabytes in MEGABYTES[:1] if quick else MEGABYTES:
        copy = _copy_rate(megabytes, stream, steps)
        rows.append(("copy", "bytes", megabytes, 2e3 * megabytes / copy, copy, 1.0))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for name, moved, call in _calls(kernels, megabytes, dtype, stream):
                microseconds = _microseconds(call, stream, steps)
                rate = moved / microseconds / 1e3
                rows.append((name, TYPES[dtype].lower(), megabytes, microseconds, rate, rate / copy))
            progress()
    made_by = "kernels.cu by NVRTC" if isinstance(kernels, CupyKernels) else "torch's kernels: cupy is not installed"
    return BenchTable(
        name="gpu-kernels",
        title=title,
        columns=columns,
        rows=rows,
        notes=(
            f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}; {made_by}; median of {steps} times "
            f"{LAUNCHES} launches, by events",
            "rate: bytes read and written; add: two buffers into one of them, a step of the ring; "
            f"add {SOURCES}: that many at once, rounded once",
            f"pack, unpack: the gradients of GPT blocks of width {WIDTH}, one kernel for all; pack +: added to the "
            "bucket. Aim: 0.80 of a copy",
        ),
    )


def block_sizes(length: int) -> list[int]:
    """Return the sizes of parameters of GPT blocks, the last cut off, that fill `length` elements."""
    block = [WIDTH, WIDTH, 3 * WIDTH * WIDTH, 3 * WIDTH, WIDTH * WIDTH, WIDTH, WIDTH, WIDTH]
    block += [4 * WIDTH * WIDTH, 4 * WIDTH, 4 * WIDTH * WIDTH, WIDTH]
    sizes: list[int] = []
    while length:
        sizes.append(min(block[len(sizes) % len(block)], length))
        length -= sizes[-1]
    return sizes


def _calls(
    kernels: "Kernels", megabytes: int, dtype: "torch.dtype", stream: "torch.cuda.Stream"
) -> list[tuple[str, int, Call]]:
    """Return name, bytes moved and call of each kernel."""
    import torch

    length = megabytes * 10**6 // dtype.itemsize
    buffers = [torch.ones(length, dtype=dtype, device="cuda") for _ in range(SOURCES)]
    tensors = [torch.ones(size, dtype=dtype, device="cuda") for size in block_sizes(length)]
    num_bytes = length * dtype.itemsize
    torch.cuda.synchronize()
    return [
        ("add", 3 * num_bytes, partial(kernels.add, buffers[0], buffers[:2], stream)),
        (f"add {SOURCES}", (SOURCES + 1) * num_bytes, partial(kernels.add, buffers[0], buffers, stream)),
        ("pack", 2 * num_bytes, partial(kernels.pack, tensors, buffers[0], False, stream)),
        ("pack +", 3 * num_bytes, partial(kernels.pack, tensors, buffers[0], True, stream)),
        ("unpack", 2 * num_bytes, partial(kernels.unpack, buffers[0], tensors, stream)),
    ]


def _copy_rate(megabytes: int, stream: "torch.cuda.Stream", steps: int) -> float:
    """Return GB/s, read and written, of a copy within the GPU's memory."""
    import torch

    source = torch.ones(megabytes * 10**6, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    torch.cuda.synchronize()

    def call() -> None:
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    return 2e3 * megabytes / _microseconds(call, stream, steps)


def _microseconds(call: Call, stream: "torch.cuda.Stream", steps: int) -> float:
    import torch

    times = []
    for step in range(steps + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        for _ in range(LAUNCHES):
            call()
        end.record(stream)
        end.synchronize()
        if step:  # the first compiles
            times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return median(times)
