"""What the buckets between certain ranks share: one duplicate of their communicator, and the costs measured on it."""

from mpi4py import MPI

from hpcpipe.collective.abi import native
from hpcpipe.collective.costs import CostTable


class Group:
    """Ranks that own buckets together; each bucket takes tags of the one duplicate that the group makes.

    Parameters
    ----------
    comm
        Every rank of it makes its groups in the same order (collective).
    costs
        What algorithms are chosen by; None for a rule that needs no measurement. The same on all ranks.

    Raises
    ------
    TypeError
        It is not a communicator of one group.
    """

    def __init__(self, comm: MPI.Intracomm, costs: CostTable | None = None) -> None:
        self.comm = checked(comm)
        self.costs = costs
        self.native = native.Group(MPI._addressof(comm))

    def free(self) -> None:
        """Free the duplicate (collective) after its buckets; nothing happens after a failure or at a second call."""
        self.native.free()


def checked(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return it if it is a communicator of one group; raise TypeError otherwise."""
    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise TypeError(f"buckets need a communicator of one group (MPI.Intracomm), not {comm!r}")
    return comm
