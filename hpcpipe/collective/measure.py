"""Measure what the algorithms cost between the ranks of a communicator, or recall what was measured on the same hosts.

Only rank 0 reads and writes the cache, so all ranks choose by the same table.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpcpipe.collective.bucket import CollectiveBucket
from hpcpipe.collective.costs import ALGORITHMS, OPERATIONS, CostTable
from hpcpipe.collective.group import Group

SIZES = (4 << 10, 64 << 10, 512 << 10, 4 << 20)
REPEATS = 5
BUDGET_S = 0.5
"""No further size is begun after this long, whatever the network."""

_FORMAT = "hpcpipe-collective-costs 1.0.0"


def measured_costs(comm: MPI.Intracomm, cache: Path | None = None) -> CostTable | None:
    """Return the costs between these ranks (collective), from the cache if these hosts are in it.

    Two ranks need none and get None: between two all algorithms are the same messages.

    Parameters
    ----------
    cache
        The folder of measured tables; default `$XDG_CACHE_HOME/hpcpipe/collectives`, else below `~/.cache`.
    """
    if comm.size <= 2:
        return None
    hosts = comm.gather(MPI.Get_processor_name())
    path, table = None, None
    if hosts is not None:
        path = cache_path(hosts, cache or default_cache())
        table = _recall(path)
    if comm.bcast(table is not None):
        return comm.bcast(table)
    table = measure(comm)
    if path is not None:
        _keep(path, table, hosts or ())
    return table


def measure(comm: MPI.Intracomm, sizes: Sequence[int] = SIZES, repeats: int = REPEATS) -> CostTable:
    """Time every algorithm on buffers of so many bytes (collective)."""
    group = Group(comm)
    took: dict[tuple, list[float]] = {(operation, name): [] for operation in OPERATIONS for name in ALGORITHMS}
    done: list[int] = []
    began = time.perf_counter()
    for size in sizes:
        length = max(1, size // 4 // comm.size) * comm.size
        for key, seconds in _times(group, length, repeats).items():
            took[key].append(seconds * 1e6)
        done.append(4 * length)
        if comm.bcast(time.perf_counter() - began > BUDGET_S):
            break
    group.free()
    return CostTable(tuple(done), {key: tuple(times) for key, times in took.items()})


def _times(group: Group, length: int, repeats: int) -> dict[tuple, float]:
    """Return the median seconds of every operation and algorithm, taken in turn; of the slowest rank each time."""
    comm = group.comm
    flats = {name: np.empty(length, dtype=np.float32) for name in ALGORITHMS}  # as cold as buckets are in training
    buckets = {
        name: CollectiveBucket(group, flat, reduce_scatter=name, all_gather=name) for name, flat in flats.items()
    }
    keys = [(operation, name) for operation in OPERATIONS for name in ALGORITHMS]
    seconds = np.zeros((repeats + 1, len(keys)))
    for repeat in range(repeats + 1):  # the first one makes the requests
        for column, (operation, name) in enumerate(keys):
            flats[name].fill(1)
            comm.Barrier()
            began = time.perf_counter()
            getattr(buckets[name], f"start_{operation}")()
            buckets[name].wait()
            seconds[repeat, column] = time.perf_counter() - began
    comm.Allreduce(MPI.IN_PLACE, seconds, op=MPI.MAX)
    for bucket in buckets.values():
        bucket.free()
    return dict(zip(keys, np.median(seconds[1:], axis=0).tolist(), strict=True))


def default_cache() -> Path:
    """Return the folder that measured tables are kept in."""
    base = os.environ.get("XDG_CACHE_HOME")
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home raises where there is none
    usual = home / ".cache" if home.is_absolute() else Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
    return (Path(base) if base else usual) / "hpcpipe" / "collectives"


def cache_path(hosts: Sequence[str], folder: Path) -> Path:
    """Return the file of the table of ranks on these hosts, in the order of the ranks, under this MPI library."""
    key = json.dumps([_FORMAT, list(hosts), MPI.Get_library_version()])
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _recall(path: Path) -> CostTable | None:
    try:
        document = json.loads(path.read_text())
        return CostTable.from_json(document["costs"]) if document["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # there is none, or it is of no use: measured again


def _keep(path: Path, table: CostTable, hosts: Sequence[str]) -> None:
    """Write a table beside its name and rename it; a home that cannot be written to is no fault."""
    document = {"format": _FORMAT, "hosts": list(hosts), "mpi": MPI.Get_library_version(), "costs": table.to_json()}
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(document, indent=1))
        beside.replace(path)
