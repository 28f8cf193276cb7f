"""The job's ranks as a whole: MPI's start, small facts shared as JSON (never pickles), and the end.

Importing this module does not start MPI; making a `World` does.
"""

import json
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.device.gpu_aware import GpuAware

if TYPE_CHECKING:
    from mpi4py import MPI


class World:
    """All ranks of the job: MPI's world, or the given communicator."""

    def __init__(self, comm: "MPI.Intracomm | None" = None) -> None:
        from mpi4py import MPI

        self.comm: MPI.Intracomm = MPI.COMM_WORLD if comm is None else comm
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank: int = self.comm.rank
        self.size: int = self.comm.size
        self.mpi_library = MPI.Get_library_version().strip("\x00").splitlines()[0].strip()
        self.host = socket.gethostname()
        self.gpu_aware: GpuAware | None = None
        """Whether MPI is given the memory of GPUs, as all ranks have agreed; None where none is used."""

    def share(self, value: Any, *, root: int = 0) -> Any:
        """Return the value of `root` on every rank (collective); anything that JSON can hold."""
        text = json.dumps(value).encode() if self.rank == root else b""
        length = np.array([len(text)], dtype=np.int64)
        self.comm.Bcast(length, root=root)
        buffer = np.frombuffer(text, dtype=np.uint8).copy() if self.rank == root else np.empty(int(length[0]), np.uint8)
        self.comm.Bcast(buffer, root=root)
        return json.loads(buffer.tobytes())

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on rank 0 and nothing elsewhere (collective)."""
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
        lengths = np.empty(self.size, dtype=np.int64) if self.rank == 0 else None
        self.comm.Gather(np.array([len(text)], dtype=np.int64), lengths)
        if lengths is None:
            self.comm.Gatherv(text, None)
            return []
        gathered = np.empty(int(lengths.sum()), dtype=np.uint8)
        self.comm.Gatherv(text, [gathered, lengths.tolist()])
        return _split(gathered, lengths)

    def first(self, value: Any) -> Any:
        """Return the value of the lowest rank that has one, on every rank (collective); None and "" are none."""
        from mpi4py import MPI

        lowest = np.array([self.size if value in (None, "") else self.rank], dtype=np.int64)
        self.comm.Allreduce(lowest.copy(), lowest, op=MPI.MIN)
        return None if lowest[0] == self.size else self.share(value, root=int(lowest[0]))

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on every rank (collective).

        It takes memory for all of them on each of them: among thousands of ranks let rank 0 `gather`, or ask a smaller
        communicator.
        """
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
        lengths = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([len(text)], dtype=np.int64), lengths)
        gathered = np.empty(int(lengths.sum()), dtype=np.uint8)
        self.comm.Allgatherv(text, [gathered, lengths.tolist()])
        return _split(gathered, lengths)

    def barrier(self) -> None:
        """Wait for all ranks (collective)."""
        self.comm.Barrier()


def _split(gathered: NDArray[np.uint8], lengths: NDArray[np.int64]) -> list[Any]:
    ends = np.cumsum(lengths)
    return [json.loads(gathered[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]
