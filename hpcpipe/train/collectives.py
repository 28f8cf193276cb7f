"""Which collectives a rank's gradients and tensor slices have: those of its device, or NCCL where the job asks for it.

What makes them is in collective/; here it is chosen.
"""

from typing import TYPE_CHECKING, Any

from hpcpipe.job import Job
from hpcpipe.plan import Kind
from hpcpipe.runtime import Mesh, PeerLostError, Waiting, World

if TYPE_CHECKING:
    from hpcpipe.collective.backend import Backend
    from hpcpipe.collective.tensor import TensorGroup


def backend_of(job: Job, device: Any) -> "Backend":
    """Return where the buckets of a device lie and who sums them."""
    from hpcpipe.collective.backend import Native, OnGpu

    nccl = job.comm.dp_collectives == "nccl"
    if device.device.type == "cpu":
        assert not nccl, "NCCL without GPUs is refused before"
        return Native()
    from hpcpipe.device.messages import Direct

    return OnGpu(
        device.gpu,
        device=device.device,
        compute=device.compute,
        gpu_aware=isinstance(device.memory, Direct),
        nccl=nccl,
    )


def problem_with_nccl(job: Job, world: World) -> str:
    """Return why a job's NCCL cannot be used, by the lowest rank where it cannot (collective); empty for nothing."""
    if not (keys := job.comm.by_nccl):
        return ""
    from hpcpipe.collective.nccl import NCCL_FIX, why_missing

    why = why_missing()
    mine = f'[comm] {" and ".join(keys)} = "nccl", but on rank {world.rank} on {world.host} {why}: {NCCL_FIX}'
    return str(world.first(mine if why else "") or "")


def tensor_group(job: Job, mesh: Mesh, waiting: Waiting, device: Any) -> "TensorGroup | None":
    """Return the collectives between the slices of this rank's stage; None where it is whole."""
    if mesh.slices is None:
        return None
    if job.comm.tp_collectives == "nccl":
        from hpcpipe.collective.nccl_tensor import NcclTensorGroup

        return NcclTensorGroup(
            mesh.slices,
            gpu=device.gpu,
            compute=device.compute,
            waiting=waiting,
            describe=lambda kind: Kind(kind).name,
            lost=PeerLostError,
        )
    from hpcpipe.collective.tensor import TensorGroup

    return TensorGroup(
        mesh.slices,
        waiting=waiting,
        check=job.comm.check_collectives,
        describe=lambda kind: Kind(kind).name,
        lost=PeerLostError,
    )
