"""The NORM task: one all-gather of a number a rank, between the last reduce-scatter and the first update.

It starts and is asked whether it is done; nobody waits in it. It must not know buckets.
"""

from collections.abc import Callable, Sequence
from math import nan

import numpy as np
from mpi4py import MPI

from hpcpipe.job import Job
from hpcpipe.runtime import Mesh, PeerLostError
from hpcpipe.train.clip import Verdict, judge
from hpcpipe.train.scaler import LossScale

_LOST = "the norms of the gradients could not be gathered; most likely a rank has died"


class GradientNorm:
    """Collects the squared norms of all ranks of a communicator, and moves the loss scale by what they say.

    Parameters
    ----------
    comm
        Ranks that agree whether the step is finite. This object frees it.
    members
        Those of its ranks whose gradients make the norm.
    clip
        The largest norm; None for any.
    scale
        The loss scale, of which the gradients still have to be freed.
    """

    def __init__(self, comm: MPI.Intracomm, *, members: Sequence[int], clip: float | None, scale: LossScale) -> None:
        self._comm = comm
        self._members = list(members)
        self._clip = clip
        self._scale = scale
        self._mine = np.zeros(1)
        self._squares = np.zeros(comm.size)
        self._request: MPI.Request | None = None
        self.sound: Callable[[], bool] = lambda: True
        """Whether what else this rank knows of the step is finite (its loss)."""
        self.verdict = Verdict(True, 0.0, 1.0)

    @property
    def num_bytes(self) -> int:
        """Bytes that a rank receives."""
        return self._squares.nbytes

    def start(self, square: float) -> None:
        """Start with this rank's squared norm, of gradients that still are scaled."""
        assert self._request is None, "the norm of the step before was not taken"
        self._mine[0] = square if self.sound() else nan
        try:
            self._request = self._comm.Iallgather(self._mine, self._squares)
        except MPI.Exception as error:
            raise PeerLostError(_LOST) from error

    def test(self) -> bool:
        """Advance; return whether the verdict is there."""
        assert self._request is not None
        try:
            if not self._request.Test():
                return False
        except MPI.Exception as error:
            raise PeerLostError(_LOST) from error
        self._request = None
        self.verdict = judge(self._squares.tolist(), members=self._members, clip=self._clip, scale=self._scale.value)
        self._scale.update(finite=self.verdict.finite)
        return True

    def free(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()


def make_norm(job: Job, mesh: Mesh, scale: LossScale) -> GradientNorm | None:
    """Return the norm of a job's ranks, or None where nothing asks for it before the update (collective)."""
    if not job.has_norm:
        return None
    settings, place = job.optimizer, mesh.place
    by_stage = settings.clip != "off" and settings.clip_scope == "stage"
    a_stage = place.data * place.tensor
    comm = mesh.world.Dup()
    members = range(place.stage * a_stage, (place.stage + 1) * a_stage) if by_stage else range(comm.size)
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    clip = None if isinstance(settings.clip, str) else settings.clip
    return GradientNorm(comm, members=members, clip=clip, scale=scale)
