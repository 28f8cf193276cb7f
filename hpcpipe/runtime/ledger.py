"""What all ranks must know of each step (loss, norm, whether it is finite), by one nonblocking all-reduce a step.

The sum of step n is read when step n + 1 has been computed, so a rank waits for a slower one only when it is a whole
step ahead.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpcpipe.runtime.failure import PeerLostError

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.runtime.waiting import Waiting


class Ledger:
    """Sums over the world, one step late."""

    def __init__(self, comm: "MPI.Intracomm", *, entries: int, waiting: "Waiting") -> None:
        self._comm = comm
        self._waiting = waiting
        self._mine = np.zeros(entries)
        self._sums = np.zeros(entries)
        self._request: MPI.Request | None = None

    def post(self, values: Sequence[float]) -> None:
        """Start the sum of this step's values (collective); the sum before must have been taken."""
        assert self._request is None, "the sum of the step before was not taken"
        self._mine[:] = values
        self._request = self._comm.Iallreduce(self._mine, self._sums)

    def take(self) -> tuple[float, ...] | None:
        """Return the sums of the step posted last, or None if none was."""
        if self._request is None:
            return None
        while not self._test():
            self._waiting.idle()
        self._waiting.busy()
        self._request = None
        return tuple(self._sums.tolist())

    def _test(self) -> bool:
        from mpi4py import MPI

        assert self._request is not None
        try:
            return self._request.Test()
        except MPI.Exception as error:
            raise PeerLostError("the sum over all ranks failed; most likely a rank has died") from error
