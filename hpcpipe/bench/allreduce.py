"""The native reduce-scatter and all-gather beside MPI's own and a plain ring in numpy, on the ranks of this machine.

Every size is measured in turns, one call of each method after the other, so that what disturbs one disturbs all.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hpcpipe.bench.ranks import run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI

    from hpcpipe.collective import CollectiveBucket, Group

KIB = 1 << 10
SIZES = tuple(4 * KIB << shift for shift in range(0, 15, 2))
"""Bytes of the whole buffer: 4 KiB to 64 MiB."""
RANKS = 2
STEPS = 60
SECONDS_A_SIZE = 4.0

Call = Callable[[], object]


def run(*, steps: int = STEPS, ranks: int = RANKS, progress: Callable[[], object] = lambda: None) -> BenchTable | None:
    """Measure on so many ranks, or on those that a launcher has started; None on all of them but the first."""
    words = ["--steps", str(steps)]
    return run_on_ranks("allreduce", partial(_work, steps), ranks=ranks, words=words, progress=progress)


def _work(steps: int, progress: Callable[[], object]) -> BenchTable | None:
    from mpi4py import MPI

    from hpcpipe.collective import Group, build_config, measured_costs

    comm = MPI.COMM_WORLD
    group = Group(comm, measured_costs(comm))
    rows: list[Row] = []
    for size in SIZES:
        rows.append(_measure(group, size // 4 // comm.size * comm.size, steps))
        progress()
    group.free()
    if comm.rank > 0:
        return None
    config = build_config()
    return BenchTable(
        name="allreduce",
        title=f"sum of a float32 buffer over {comm.size} ranks, microseconds (median of the slowest rank)",
        columns=(
            Column("KiB"),
            Column("RS"),
            Column("AG"),
            Column("ours", "us", 1),
            Column("split", "us", 1),
            Column("whole", "us", 1),
            Column("numpy", "us", 1),
            Column("split x", "x"),
            Column("whole x", "x"),
            Column("numpy x", "x"),
        ),
        rows=rows,
        notes=(
            f"{config['mpi_library_version']}; kernels for {config['kernels']}; up to {steps} calls of each, in turns",
            "ours: reduce-scatter (RS), then all-gather (AG), each waited for; algorithms by measured costs",
            "split: Ireduce_scatter_block, then Iallgather, each waited for; whole: blocking Allreduce in place",
            "numpy: a ring of Isend, Irecv and numpy's add, a block a message",
            "x: how many times the time of ours",
            *_costs(group),
        ),
    )


def _costs(group: "Group") -> list[str]:
    """Say what the algorithms cost, as alpha and beta."""
    from hpcpipe.collective.costs import fit

    if group.costs is None:
        return ["between two ranks all algorithms are the same messages: no costs are measured"]
    table = group.costs
    fits = {key: fit(table.sizes, times) for key, times in table.times_us.items()}
    return [
        f"{operation} {algorithm}: {cost.alpha_us:.1f} us + {cost.beta_ns:.3f} ns a byte"
        for (operation, algorithm), cost in fits.items()
    ]


def _measure(group: "Group", length: int, steps: int) -> Row:
    import numpy as np

    from hpcpipe.collective import CollectiveBucket

    comm = group.comm
    flats = [_aligned(length) for _ in range(4)]
    bucket = CollectiveBucket(group, flats[0])
    methods = [_ours(bucket), _split(comm, flats[1]), _whole(comm, flats[2]), _numpy_ring(comm, flats[3])]
    for flat, method in zip(flats, methods, strict=True):  # the first call, and whether it is right
        flat.fill(comm.rank + 1)
        method()
        if not np.all(flat == comm.size * (comm.size + 1) / 2):
            raise ArithmeticError(f"a sum of {length} numbers over {comm.size} ranks is wrong")
    medians = _medians(comm, flats, methods, steps)
    bucket.free()
    ratios = [other / medians[0] for other in medians[1:]]
    return (4 * length // KIB, bucket.reduce_scatter, bucket.all_gather, *medians, *ratios)


def _aligned(length: int) -> "np.ndarray":
    """Return a buffer that begins a huge page, so that no method has better memory than another."""
    import numpy as np

    page = (2 << 20) // 4
    memory = np.empty(length + page, dtype=np.float32)
    begin = -(memory.ctypes.data // 4) % page
    return memory[begin : begin + length]


def _medians(comm: "MPI.Intracomm", flats: "list[np.ndarray]", methods: list[Call], steps: int) -> list[float]:
    """Return the median microseconds of each method; of the slowest rank each time."""
    import numpy as np
    from mpi4py import MPI

    took = []
    began = time.perf_counter()
    for step in range(steps):
        row = np.zeros(len(methods))
        for turn in range(len(methods)):
            index = (turn + step) % len(methods)
            flats[index].fill(1)
            comm.Barrier()
            start = time.perf_counter()
            methods[index]()
            row[index] = time.perf_counter() - start
        took.append(row)
        if comm.bcast(time.perf_counter() - began > SECONDS_A_SIZE):
            break
    table = np.array(took)
    comm.Allreduce(MPI.IN_PLACE, table, op=MPI.MAX)
    return [float(value) for value in np.median(table, axis=0) * 1e6]


def _ours(bucket: "CollectiveBucket") -> Call:
    def call() -> None:
        bucket.start_reduce_scatter()
        bucket.wait()
        bucket.start_all_gather()
        bucket.wait()

    return call


def _split(comm: "MPI.Intracomm", flat: "np.ndarray") -> Call:
    import numpy as np
    from mpi4py import MPI

    block = len(flat) // comm.size
    shard = np.empty(block, dtype=np.float32)
    whole, part = [flat, block, MPI.FLOAT], [shard, block, MPI.FLOAT]

    def call() -> None:
        comm.Ireduce_scatter_block(whole, part).Wait()
        comm.Iallgather(part, whole).Wait()

    return call


def _whole(comm: "MPI.Intracomm", flat: "np.ndarray") -> Call:
    from mpi4py import MPI

    buffer = [flat, len(flat), MPI.FLOAT]
    return lambda: comm.Allreduce(MPI.IN_PLACE, buffer)


def _numpy_ring(comm: "MPI.Intracomm", flat: "np.ndarray") -> Call:
    import numpy as np
    from mpi4py import MPI

    blocks = flat.reshape(comm.size, -1)
    arriving = np.empty_like(blocks[0])
    following, preceding = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def call() -> None:
        for step in range(comm.size - 1):
            receive = comm.Irecv(arriving, preceding)
            send = comm.Isend(blocks[(comm.rank - step - 1) % comm.size], following)
            receive.Wait()
            own = blocks[(comm.rank - step - 2) % comm.size]
            np.add(arriving, own, out=own)
            send.Wait()
        for step in range(comm.size - 1):
            receive = comm.Irecv(blocks[(comm.rank - step - 1) % comm.size], preceding)
            send = comm.Isend(blocks[(comm.rank - step) % comm.size], following)
            MPI.Request.Waitall([receive, send])

    return call
