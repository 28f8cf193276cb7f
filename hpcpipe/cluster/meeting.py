"""Let the ranks tell each other a few words before anything heavy is imported: JSON over MPI, never pickles.

Importing this module does not start MPI; calling `meet` does.
"""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI


def meet() -> "MPI.Intracomm":
    """Start MPI and return its world."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def exchange(comm: "MPI.Intracomm", value: Any) -> list[Any]:
    """Return what each rank has to say, by rank, on every rank (collective); anything that JSON can hold."""
    from mpi4py import MPI

    mine = json.dumps(value).encode()
    lengths = memoryview(bytearray(4 * comm.size)).cast("i")
    own = memoryview(bytearray(4)).cast("i")
    own[0] = len(mine)
    comm.Allgather([own, MPI.INT], [lengths, MPI.INT])
    counts = lengths.tolist()
    gathered = bytearray(sum(counts))
    comm.Allgatherv([mine, MPI.BYTE], [gathered, counts, MPI.BYTE])
    found, start = [], 0
    for count in counts:
        found.append(json.loads(gathered[start : start + count]))
        start += count
    return found
