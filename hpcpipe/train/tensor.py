"""The tensor-parallel slices of a rank's stage: their agreement, and what each of them counts.

Built from the job; a stage that is not cut has no agreement. Their collectives are chosen in collectives.py.
"""

from typing import TYPE_CHECKING

from hpcpipe.job import Job
from hpcpipe.runtime import Mesh, Place
from hpcpipe.runtime.agreement import Agreement

if TYPE_CHECKING:
    import torch


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
