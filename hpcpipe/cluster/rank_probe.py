"""What the ranks of a launcher find out together, each in a child process: their facts, their clocks, their links.

It says what is, never whether that is good; doctor_ranks.py judges. Nothing here is meant to be fast, only short.
"""

import fcntl
import os
import re
import resource
import socket
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hpcpipe.cluster import environment
from hpcpipe.cluster.meeting import gather

if TYPE_CHECKING:
    from mpi4py import MPI

ROUND_TRIPS = 32
BULK_BYTES = 1 << 20
BULK_MESSAGES = 4
TRANSPORTS = {"libucp": "UCX", "libfabric": "libfabric", "libpsm2": "PSM2", "libmpi_gtl_": "Cray GTL", "libcxi": "CXI"}
MODULES = re.compile(r"/lib(?:uct_(?P<ucx>\w+)|(?P<fabric>\w+)-fi)\.so")
"""What UCX and libfabric load for one kind of network each, such as libuct_ib.so and libpsm3-fi.so."""
SETTINGS = (
    "FI_PROVIDER",
    "MPIR_CVAR_CH4_NETMOD",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_pml",
    "UCX_NET_DEVICES",
    "UCX_TLS",
)


def look(comm: "MPI.Intracomm", folder: str) -> dict[str, Any]:
    """Return what all ranks are and how they reach each other (collective), on rank 0; nothing elsewhere."""
    offset = _clock_offset(comm)
    links = _links(comm)
    facts = _facts() | {"rank": comm.rank, "clock_offset_s": offset, "sees_folder": _sees(comm, Path(folder))}
    facts["files"] = _files(Path(folder)) if not facts["local_rank"] else None
    told = gather(comm, {"facts": facts, "links": links})
    ranks = [entry["facts"] for entry in told]
    return {"ranks": ranks, "links": [link for entry in told for link in entry["links"]]}


def _facts() -> dict[str, Any]:
    from mpi4py import MPI

    place = environment.world()
    return {
        "node": environment.slurm_node() or socket.gethostname(),
        "local_rank": place.local_rank if place else None,
        "library": " ".join(MPI.Get_library_version().splitlines()[0].split()),
        "handle_bytes": MPI._sizeof(MPI.Comm),
        "gpus": environment.visible_gpus(),
        "whole": environment.step_gpus(),
        "on_node": environment.gpus_on_node(),
        "transports": _transports(),
        "network_settings": {name: os.environ[name] for name in SETTINGS if os.environ.get(name)},
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": _number(os.environ.get("OMP_NUM_THREADS", "")),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
    }


def _transports() -> list[str]:
    with suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace")
        found = [name for library, name in TRANSPORTS.items() if library in maps]
        modules = {(f"UCX {m['ucx']}" if m["ucx"] else f"libfabric {m['fabric']}") for m in MODULES.finditer(maps)}
        return [*found, *sorted(modules)]
    return []


def _clock_offset(comm: "MPI.Intracomm") -> float:
    """Return this node's time of day minus rank 0's in s, of the quickest of some round trips (collective)."""
    if comm.rank == 0:
        for peer in range(1, comm.size):
            for _ in range(8):
                comm.Recv(bytearray(8), source=peer)
                comm.Send(_packed(time.time()), dest=peer)
        return 0.0
    best, offset = float("inf"), 0.0
    for _ in range(8):
        answer = memoryview(bytearray(8)).cast("d")
        sent = time.time()
        comm.Send(bytearray(8), dest=0)
        comm.Recv(answer, source=0)
        received = time.time()
        if received - sent < best:
            best, offset = received - sent, (sent + received) / 2 - answer[0]
    return offset


def _links(comm: "MPI.Intracomm") -> list[dict[str, Any]]:
    """Measure the links between ranks that follow each other, first those from even ranks on, then the others."""
    found = []
    for phase in (0, 1):
        comm.Barrier()
        lower = comm.rank % 2 == phase
        peer = comm.rank + 1 if lower else comm.rank - 1
        if not 0 <= peer < comm.size:
            continue
        if lower:
            found.append({"from": comm.rank, "to": peer, **_measure(comm, peer)})
        else:
            _reflect(comm, peer)
    return found


def _measure(comm: "MPI.Intracomm", peer: int) -> dict[str, float]:
    small, times = bytearray(8), []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        comm.Send(small, dest=peer)
        comm.Recv(small, source=peer)
        times.append(time.perf_counter() - start)
    bulk = bytearray(BULK_BYTES)
    rates = []
    for _ in range(BULK_MESSAGES):
        start = time.perf_counter()
        comm.Send(bulk, dest=peer)
        comm.Recv(small, source=peer)
        rates.append(BULK_BYTES / (time.perf_counter() - start))
    return {"latency_us": median(times) / 2 * 1e6, "mb_per_s": max(rates) / 1e6}


def _reflect(comm: "MPI.Intracomm", peer: int) -> None:
    small, bulk = bytearray(8), bytearray(BULK_BYTES)
    for _ in range(ROUND_TRIPS):
        comm.Recv(small, source=peer)
        comm.Send(small, dest=peer)
    for _ in range(BULK_MESSAGES):
        comm.Recv(bulk, source=peer)
        comm.Send(small, dest=peer)


def _sees(comm: "MPI.Intracomm", folder: Path) -> bool:
    """Return whether a file that rank 0 makes in the folder is seen by this rank, as on a shared file system."""
    from mpi4py import MPI

    word = bytearray(8)
    path = None
    if comm.rank == 0:
        word[:] = os.urandom(8)
        path = folder / f".hpcpipe-doctor-{word.hex()}"
        with suppress(OSError):
            path.touch(exist_ok=False)
    comm.Bcast([word, MPI.BYTE], root=0)
    deadline = time.monotonic() + 3  # network file systems tell late
    mine = folder / f".hpcpipe-doctor-{word.hex()}"
    while not (seen := mine.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    comm.Barrier()
    if path is not None:
        path.unlink(missing_ok=True)
    return seen


def _files(folder: Path) -> dict[str, Any]:
    """Do in the folder, from this node, what a run does there: write, sync, lock, rename."""
    path = folder / f".hpcpipe-doctor-{os.uname().nodename}-{os.getpid()}"
    locks = ""
    try:
        start = time.perf_counter()
        with path.open("xb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            synced_ms = (time.perf_counter() - start) * 1e3
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                locks = error.strerror or str(error)
        path.rename(path.with_name(f"{path.name}-renamed"))
    except OSError as error:
        return {"error": error.strerror or str(error)}
    finally:
        for left in (path, path.with_name(f"{path.name}-renamed")):
            with suppress(OSError):
                left.unlink()
    return {"synced_ms": synced_ms, "locks": locks}


def _packed(value: float) -> "memoryview[float]":
    view = memoryview(bytearray(8)).cast("d")
    view[0] = value
    return view


def _number(text: str) -> int | None:
    first = text.partition(",")[0].strip()
    return int(first) if first.isdecimal() else None
