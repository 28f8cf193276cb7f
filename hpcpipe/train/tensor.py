"""The tensor-parallel slices of a rank's stage: their collectives, their agreement, and what each of them counts.

Built from the job; a stage that is not cut has neither collectives nor an agreement.
"""

from typing import TYPE_CHECKING

from hpcpipe.job import Job
from hpcpipe.plan import Kind
from hpcpipe.runtime import Mesh, PeerLostError, Place, Waiting
from hpcpipe.runtime.agreement import Agreement

if TYPE_CHECKING:
    import torch

    from hpcpipe.collective.tensor import TensorGroup


def tensor_group(job: Job, mesh: Mesh, waiting: Waiting) -> "TensorGroup | None":
    """Return the collectives between the slices of this rank's stage; None where it is whole."""
    if mesh.slices is None:
        return None
    from hpcpipe.collective.tensor import TensorGroup

    return TensorGroup(
        mesh.slices,
        waiting=waiting,
        check=job.comm.check_collectives,
        describe=lambda kind: Kind(kind).name,
        lost=PeerLostError,
    )


def agreement_of(job: Job, mesh: Mesh, *, replayed: bool, blocks: bool) -> Agreement | None:
    """Return how the slices of a stage agree on what to run; None where they need not.

    A fixed order and a recorded one are the same on all slices. `blocks`: whether tasks keep this thread busy.
    """
    if mesh.agreement is None or replayed or job.schedule.dispatch == "fixed":
        return None
    return Agreement(mesh.agreement, rule=job.schedule.agreement, blocks=blocks)


def counts_here(place: Place, parameter: "torch.nn.Parameter") -> bool:
    """Return whether this rank's gradient belongs to the norm: of a whole parameter that of the first slice only."""
    return place.slice == 0 or hasattr(parameter, "sliced")
