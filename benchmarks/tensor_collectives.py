"""Print what sums between tensor slices take, gathered whole or reduced in parts, and a round of their agreement.

Start it under MPI, one process a slice: `mpiexec -n 4 python benchmarks/tensor_collectives.py`. Times are medians of
the slowest slice's.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from hpcpipe.collective.tensor import TensorGroup
from hpcpipe.runtime import Waiting, choose_poll

SIZES = (4 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
REPEATS = 30


def median_us(comm: MPI.Intracomm, call: Callable[[], object]) -> float:
    """Return the median over calls of the slowest rank's time (µs)."""
    took = np.empty(REPEATS)
    for repeat in range(-3, REPEATS):
        comm.Barrier()
        began = time.perf_counter()
        call()
        took[max(repeat, 0)] = time.perf_counter() - began
    comm.Allreduce(MPI.IN_PLACE, took, op=MPI.MAX)
    return float(np.median(took)) * 1e6


def main() -> None:
    """Print the table on rank 0."""
    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    waiting = Waiting(choose_poll("auto", sharing_ranks=comm.size))
    gathered = TensorGroup(comm.Dup(), waiting=waiting, large_bytes=1 << 62)
    parts = TensorGroup(comm.Dup(), waiting=waiting, large_bytes=1)
    checked = TensorGroup(comm.Dup(), waiting=waiting, large_bytes=1 << 62, check=True)
    table = Table(title=f"sums between {comm.size} slices, µs")
    for heading in ("bytes", "gathered whole", "in parts", "gathered, checked", "MPI_Allreduce"):
        table.add_column(heading, justify="right")
    for size in SIZES:
        value, flat = torch.randn(size // 4), np.zeros(size // 4, np.float32)
        calls = [lambda g=g, v=value: g.all_reduce(v) for g in (gathered, parts, checked)]
        calls.append(lambda f=flat: comm.Allreduce(MPI.IN_PLACE, f))
        table.add_row(f"{size:,}", *(f"{median_us(comm, call):.0f}" for call in calls))
    mine, common = np.ones(8, np.uint64), np.zeros(8, np.uint64)

    def round_() -> None:
        request = comm.Iallreduce(mine, common, op=MPI.BAND)
        waiting.busy()
        while not request.Test():
            waiting.idle()

    took = median_us(comm, round_)
    if comm.rank == 0:
        console = Console(width=100)
        console.print(table)
        console.print(f"a round of the agreement (64 bytes): {took:.0f} µs")


if __name__ == "__main__":
    main()
