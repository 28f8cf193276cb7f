"""One bucket of float32 values that the ranks of a communicator sum and share around a ring, without ever blocking.

The algorithm is in native/ring.cpp; this face checks what the ranks must agree on. It knows nothing of parameters.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from mpi4py import MPI

from hpcpipe.collective.abi import native

if TYPE_CHECKING:
    import torch


class RingBucket:
    """Reduce-scatter and all-gather of one buffer over persistent requests; at most one of them is under way.

    Sums are made in the order of the ring (part b: ranks b+1, b+2, ..., b), so their bits are the same on every run.
    Between `start_...` and completion nobody else may touch `flat`.

    Parameters
    ----------
    comm
        Every rank of it makes its buckets in the same order (collective); it is duplicated.
    flat
        1-D, contiguous, float32, in CPU memory; its length is the same on all ranks and a multiple of `comm.size`.

    Raises
    ------
    TypeError, ValueError
        The buffer is of another kind, its length does not divide, or the ranks' lengths differ.
    MpiError
        An MPI call failed; the text names this rank and its peer. The bucket cannot be used again.
    """

    def __init__(self, comm: MPI.Intracomm, flat: "torch.Tensor | np.ndarray") -> None:
        if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
            raise TypeError(f"a ring needs a communicator of one group (MPI.Intracomm), not {comm!r}")
        _check_same_length(comm, len(flat))
        self._ring = native.Ring(MPI._addressof(comm), flat.detach() if hasattr(flat, "detach") else flat)
        self.flat = flat
        self.shard = slice(self._ring.shard_begin, self._ring.shard_end)

    def start_reduce_scatter(self) -> None:
        """Start summing over the ranks; when done, `flat[shard]` holds the sum and the rest of `flat` is scratch."""
        self._ring.start_reduce_scatter()

    def start_all_gather(self) -> None:
        """Start sharing; when done, `flat` holds every rank's shard in its place."""
        self._ring.start_all_gather()

    def test(self) -> bool:
        """Do what can be done now, never block; return True when nothing is under way."""
        return self._ring.test()

    def wait(self, poll: Literal["spin", "yield", "sleep"] = "yield") -> None:
        """Return when nothing is under way; `poll` says what the core does meanwhile."""
        self._ring.wait(poll)

    def free(self) -> None:
        """Free the requests and the communicator (collective); raises RuntimeError while something is under way."""
        self._ring.free()


def _check_same_length(comm: MPI.Intracomm, length: int) -> None:
    """Raise ValueError on every rank unless all ranks gave the same length (collective)."""
    extremes = np.array([length, -length], dtype=np.int64)
    comm.Allreduce(MPI.IN_PLACE, extremes, op=MPI.MAX)
    longest, shortest = int(extremes[0]), -int(extremes[1])
    if longest != shortest:
        raise ValueError(
            f"rank {comm.rank}: this bucket has {length} elements, but over the ranks they have "
            f"{shortest} to {longest}: all must be equally long"
        )
