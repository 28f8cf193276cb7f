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
"""In one measurement, behind a kernel that lasts until all are given: launching them takes none of the time."""

BEFOREHAND = 10_000_000
"""Clock cycles of that kernel, some 5 ms."""

MEGABYTES = (25, 500)
"""A usual bucket and a large one."""

TOGETHER_MB = 500
"""What launches go through in turn, so that none finds its bucket in the GPU's cache."""

WIDTH = 2048
SOURCES = 4

Call = Callable[[int], None]
"""One launch, on the set of buffers of that number."""


def run(*, steps: int = STEPS, quick: bool = False, progress: Callable[[], object] = lambda: None) -> BenchTable:
    """Measure on this process's first GPU; `quick` leaves the large buffer out."""
    import torch

    from hpcpipe.collective.device_kernels import TYPES, make_kernels
    from hpcpipe.device.gpu import why_none

    columns = (
        Column("kernel"),
        Column("type"),
        Column("MB", digits=0),
        Column("time", "us", 1),
        Column("rate", "GB/s", 0),
        Column("of a copy", "x", 2),
    )
    title = "kernels of gradient buckets beside a copy in a GPU's memory"
    if reason := why_none():
        why = f"no GPU here: not run ({reason})"
        return BenchTable(name="gpu-kernels", title=title, columns=columns, rows=(), notes=(why,))
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    kernels = make_kernels()
    stream = torch.cuda.Stream(device)
    rows: list[Row] = []
    for megabytes in MEGABYTES[:1] if quick else MEGABYTES:
        copy = _copy_rate(megabytes, stream, steps)
        rows.append(("copy", "bytes", megabytes, 2e3 * megabytes / copy, copy, 1.0))
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for name, moved, call in _calls(kernels, megabytes, dtype, stream):
                microseconds = _microseconds(call, _sets(megabytes), stream, steps)
                rate = moved / microseconds / 1e3
                rows.append((name, TYPES[dtype].lower(), megabytes, microseconds, rate, rate / copy))
            progress()
    made_by = f"torch's kernels: {kernels.instead_of}" if kernels.instead_of else "kernels.cu by NVRTC"
    return BenchTable(
        name="gpu-kernels",
        title=title,
        columns=columns,
        rows=rows,
        notes=(
            f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}; {made_by}; median of {steps} times "
            f"{LAUNCHES} launches, by events",
            f"memory: {_nominal(device)}; {TOGETHER_MB} MB of buckets are taken in turn, more than the cache holds",
            "rate: bytes read and written; add: two buffers into one of them, a step of the ring; "
            f"add {SOURCES}: that many at once, rounded once",
            f"pack, unpack: the gradients of GPT blocks of width {WIDTH}, one kernel for all; pack +: added to the "
            "bucket. Aim: 0.80 of what the memory could do",
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
    sets = range(_sets(megabytes))
    buffers = [[torch.ones(length, dtype=dtype, device="cuda") for _ in range(SOURCES)] for _ in sets]
    tensors = [[torch.ones(size, dtype=dtype, device="cuda") for size in block_sizes(length)] for _ in sets]
    num_bytes = length * dtype.itemsize
    torch.cuda.synchronize()

    def add(count: int, index: int) -> None:
        kernels.add(buffers[index][0], buffers[index][:count], stream)

    def pack(adds: bool, index: int) -> None:
        kernels.pack(tensors[index], buffers[index][0], adds, stream)

    def unpack(index: int) -> None:
        kernels.unpack(buffers[index][0], tensors[index], stream)

    return [
        ("add", 3 * num_bytes, partial(add, 2)),
        (f"add {SOURCES}", (SOURCES + 1) * num_bytes, partial(add, SOURCES)),
        ("pack", 2 * num_bytes, partial(pack, False)),
        ("pack +", 3 * num_bytes, partial(pack, True)),
        ("unpack", 2 * num_bytes, unpack),
    ]


def _sets(megabytes: int) -> int:
    """Return how many buckets of a size the launches take in turn."""
    return max(1, TOGETHER_MB // megabytes)


def _nominal(device: "torch.device") -> str:
    """Return what the memory could move at its clock and width, where the driver tells them."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    clock, width = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
    if not clock or not width:
        return "its clock is not told"
    return f"{2 * clock * width / 8e6:.0f} GB/s at {clock / 1e3:.0f} MHz and {width} bits"


def _copy_rate(megabytes: int, stream: "torch.cuda.Stream", steps: int) -> float:
    """Return GB/s, read and written, of a copy within the GPU's memory."""
    import torch

    sets = range(_sets(megabytes))
    sources = [torch.ones(megabytes * 10**6, dtype=torch.uint8, device="cuda") for _ in sets]
    targets = [torch.empty_like(source) for source in sources]
    torch.cuda.synchronize()

    def call(index: int) -> None:
        with torch.cuda.stream(stream):
            targets[index].copy_(sources[index], non_blocking=True)

    return 2e3 * megabytes / _microseconds(call, _sets(megabytes), stream, steps)


def _microseconds(call: Call, sets: int, stream: "torch.cuda.Stream", steps: int) -> float:
    import torch

    times = []
    for step in range(steps + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BEFOREHAND)
        begin.record(stream)
        for launch in range(LAUNCHES):
            call(launch % sets)
        end.record(stream)
        end.synchronize()
        if step:  # the first compiles
            times.append(begin.elapsed_time(end) * 1e3 / LAUNCHES)
    return median(times)
