"""Persistent receives, as the runtime posts them, beside plain nonblocking ones: messages around a ring.

Each rank keeps some receives posted for its left neighbour, sends to its right one, and looks with Testsome.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from hpcpipe.bench.emulated import meet
from hpcpipe.bench.ranks import run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS = 2
STEPS = 20
MESSAGES = 400
SLOTS = 8
SIZES = (256, 4096, 65536, 1 << 20)
US = 1e-3

Round = tuple[float, float]  # µs a message: wall, CPU


def run(*, steps: int = STEPS, ranks: int = RANKS, progress: Callable[[], object] = lambda: None) -> BenchTable | None:
    """Measure on so many ranks, or on those that a launcher has started; None on all of them but the first."""
    return run_on_ranks(
        "requests", partial(_work, steps), ranks=ranks, words=["--steps", str(steps)], progress=progress
    )


def _work(steps: int, progress: Callable[[], object]) -> BenchTable | None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rows: list[Row] = []
    for size in SIZES:
        rounds: dict[bool, list[Round]] = {True: [], False: []}
        for step in range(steps + 1):
            for persistent in (True, False) if step % 2 else (False, True):
                meet(comm)
                rounds[persistent].append(_ring(comm, size, persistent=persistent))
        kinds = [[median(one[which] for one in rounds[kind][1:]) for which in range(2)] for kind in (True, False)]
        slowest = [[comm.allreduce(value, MPI.MAX) for value in kind] for kind in kinds]
        rows.append((size, *slowest[0], *slowest[1], slowest[1][1] / slowest[0][1]))
        progress()
    if comm.rank > 0:
        return None
    library = " ".join(MPI.Get_library_version().strip("\x00").splitlines()[0].split())
    return BenchTable(
        name="requests",
        title=f"microseconds a message between {comm.size} ranks: persistent and plain nonblocking receives",
        columns=(
            Column("bytes"),
            Column("persistent", "us", 2),
            Column("its CPU", "us", 2),
            Column("plain", "us", 2),
            Column("plain CPU", "us", 2),
            Column("CPU x", "x"),
        ),
        rows=rows,
        notes=(
            f"{library}; median of {steps} rounds of {MESSAGES} messages, in turns; slowest rank; {SLOTS} slots",
            "CPU x: how many times the CPU time of persistent receives plain ones take; sends are plain in both",
        ),
    )


def _ring(comm: "MPI.Intracomm", size: int, *, persistent: bool) -> Round:
    """Pass messages around a ring and return what one cost."""
    from mpi4py import MPI

    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    buffers = [bytearray(size) for _ in range(SLOTS)]
    outgoing = [bytearray(size) for _ in range(SLOTS)]
    requests: list[MPI.Request]
    if persistent:
        made = [comm.Recv_init([buffer, MPI.BYTE], left, 1) for buffer in buffers]
        for request in made:
            request.Start()
        requests = list(made)
    else:
        made = []
        requests = [comm.Irecv([buffer, MPI.BYTE], left, 1) for buffer in buffers]
    sends: list[MPI.Request] = []
    received, sent, posted = 0, 0, SLOTS
    begin, cpu = time.monotonic_ns(), time.thread_time_ns()
    while received < MESSAGES or sends:
        while sent < MESSAGES and len(sends) < SLOTS:
            sends.append(comm.Isend([outgoing[sent % SLOTS], MPI.BYTE], right, 1))
            sent += 1
        done = MPI.Request.Testsome([*requests, *sends]) or []
        if not done:
            os.sched_yield()
        gone = {index - SLOTS for index in done if index >= SLOTS}
        sends = [request for index, request in enumerate(sends) if index not in gone]
        for slot in (index for index in done if index < SLOTS):
            received += 1
            if posted == MESSAGES:
                continue
            posted += 1
            if persistent:
                made[slot].Start()
            else:
                requests[slot] = comm.Irecv([buffers[slot], MPI.BYTE], left, 1)
    took = (time.monotonic_ns() - begin) * US / MESSAGES, (time.thread_time_ns() - cpu) * US / MESSAGES
    for request in made:
        request.Free()
    return took
