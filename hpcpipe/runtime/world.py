"""The job's ranks as a whole: MPI's start, small facts shared as JSON (never pickles), and the end.

Importing this module does not start MPI; making a `World` does.
"""

import json
import socket
from typing import TYPE_CHECKING, Any

import numpy as np

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

    def share(self, value: Any) -> Any:
        """Return rank 0's value on every rank (collective); anything that JSON can hold."""
        text = json.dumps(value).encode() if self.rank == 0 else b""
        length = np.array([len(text)], dtype=np.int64)
        self.comm.Bcast(length, root=0)
        buffer = np.frombuffer(text, dtype=np.uint8).copy() if self.rank == 0 else np.empty(int(length[0]), np.uint8)
        self.comm.Bcast(buffer, root=0)
        return json.loads(buffer.tobytes())

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on every rank (collective)."""
        text = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8).copy()
        lengths = np.empty(self.size, dtype=np.int64)
        self.comm.Allgather(np.array([len(text)], dtype=np.int64), lengths)
        gathered = np.empty(int(lengths.sum()), dtype=np.uint8)
        self.comm.Allgatherv(text, [gathered, lengths.tolist()])
        ends = np.cumsum(lengths)
        return [json.loads(gathered[end - length : end].tobytes()) for end, length in zip(ends, lengths, strict=True)]

    def barrier(self) -> None:
        """Wait for all ranks (collective)."""
        self.comm.Barrier()
