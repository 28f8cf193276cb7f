"""Memory that all ranks of a node see, a piece for each of them, through an MPI shared-memory window.

It hands out plain buffers; what is put into them and how readers and writers agree is not known here.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

_LINE = 64


class NodeMemory:
    """`num_bytes` zero bytes for each rank of this node (collective over `world` at creation, freed by `free`).

    Attributes
    ----------
    memories
        The pieces, by place on the node, as writable bytes; the places follow the world ranks.
    own
        This rank's place.

    Raises
    ------
    MPI.Exception
        The node's shared memory is too small (on the node's ranks together, not on others).
    """

    def __init__(self, world: "MPI.Intracomm", num_bytes: int) -> None:
        from mpi4py import MPI

        self.comm = MPI.Intracomm(world.Split_type(MPI.COMM_TYPE_SHARED, world.rank))
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.own: int = self.comm.rank
        size = -(-num_bytes // _LINE) * _LINE
        self._window: MPI.Win = MPI.Win.Allocate_shared(size, 1, comm=self.comm)
        self._window.Lock_all()
        pieces = [np.asarray(self._window.Shared_query(place)[0], dtype=np.uint8) for place in range(self.comm.size)]
        self.memories = [piece.data[:num_bytes] for piece in pieces]
        np.frombuffer(self.memories[self.own], dtype=np.uint8)[:] = 0
        self.fence()
        self.comm.Barrier()
        self.fence()

    def fence(self) -> None:
        """Let all ranks of the node see what this one has written, and this one what they have."""
        self._window.Sync()

    def free(self) -> None:
        """Free the memory (collective over the node); nobody may touch it afterwards."""
        self.memories = []
        self._window.Unlock_all()
        self._window.Free()
        self.comm.Free()
