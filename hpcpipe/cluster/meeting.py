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

    if not MPI.Is_initialized():  # somebody has asked for `library` before
        import mpi4py

        MPI.Init_thread(getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}"))
    return MPI.COMM_WORLD


def library() -> str:
    """Return what the MPI library says of itself, without starting it; `meet` starts it then."""
    import mpi4py

    mpi4py.rc(initialize=False, finalize=True)
    from mpi4py import MPI

    return MPI.Get_library_version().rstrip("\0")


def gather(comm: "MPI.Intracomm", value: Any) -> list[Any]:
    """Return what each rank has to say, by rank, on rank 0 and nothing elsewhere (collective)."""
    from mpi4py import MPI

    mine = json.dumps(value).encode()
    own = memoryview(bytearray(4)).cast("i")
    own[0] = len(mine)
    if comm.rank != 0:
        comm.Gather([own, MPI.INT], None)
        comm.Gatherv([mine, MPI.BYTE], None)
        return []
    lengths = memoryview(bytearray(4 * comm.size)).cast("i")
    comm.Gather([own, MPI.INT], [lengths, MPI.INT])
    counts = lengths.tolist()
    gathered = bytearray(sum(counts))
    comm.Gatherv([mine, MPI.BYTE], [gathered, counts, MPI.BYTE])
    found, start = [], 0
    for count in counts:
        found.append(json.loads(gathered[start : start + count]))
        start += count
    return found


def share(comm: "MPI.Intracomm", value: Any) -> Any:
    """Return what rank 0 says, on every rank (collective); anything that JSON can hold."""
    from mpi4py import MPI

    text = json.dumps(value).encode() if comm.rank == 0 else b""
    length = memoryview(bytearray(4)).cast("i")
    length[0] = len(text)
    comm.Bcast([length, MPI.INT], root=0)
    buffer = bytearray(text) if comm.rank == 0 else bytearray(length[0])
    comm.Bcast([buffer, MPI.BYTE], root=0)
    return json.loads(buffer)
