"""Where the buckets of gradients lie and who sums them: the native module on a CPU, kernels or NCCL on a GPU.

The choice is made once for a rank; whoever owns buckets sees no difference. It knows no parameters.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from mpi4py import MPI

from hpcpipe.collective.bucket import CollectiveBucket
from hpcpipe.collective.device_kernels import Kernels, make_kernels
from hpcpipe.collective.device_ring import DeviceBucket, DeviceGroup, GpuWithStreams
from hpcpipe.collective.device_staged import StagedBucket
from hpcpipe.collective.fusion import pack, square_sum
from hpcpipe.collective.group import Group

if TYPE_CHECKING:
    from hpcpipe.collective.nccl import NcclGroup

Progress = Literal["poll", "thread", "auto"]
"""Who works on what is under way on a CPU, as in `CollectiveBucket`; kernels and copies of a GPU need nobody."""


class Collective(Protocol):
    """One flat buffer that ranks sum and share; see `CollectiveBucket`."""

    shard: slice

    def start_reduce_scatter(self) -> None:
        """Start summing."""

    def start_all_gather(self) -> None:
        """Start sharing."""

    def test(self) -> bool:
        """Return whether nothing is under way; never blocks."""

    def free(self) -> None:
        """Free what it holds."""


class Backend(Protocol):
    """What makes the collectives of buckets, and copies into them."""

    device: torch.device

    def bucket(self, group: Group, flat: torch.Tensor, *, in_turn: bool, progress: Progress = "poll") -> Collective:
        """Return the collectives of a buffer (collective).

        `in_turn` says that all ranks start them in one order among those of the other buckets that are in turn.
        """

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool = False) -> None:
        """Write the tensors one after the other into `flat`, or add them, as part of the tasks' own work."""

    def square_sum(self, flat: torch.Tensor) -> float | torch.Tensor:
        """Return the sum of the squares in double precision, on a GPU as a tensor that nobody waits for yet."""

    def release(self, group: Group) -> None:
        """Free what the buckets of a group shared (collective); they have been freed, and the group is freed next."""

    def free(self) -> None:
        """Free what the buckets shared (collective); they have been freed."""


class Native:
    """The native module, in the memory of the CPU."""

    device = torch.device("cpu")

    def bucket(
        self, group: Group, flat: torch.Tensor, *, in_turn: bool, progress: Progress = "poll"
    ) -> CollectiveBucket:
        """Return a bucket of the native module."""
        del in_turn
        return CollectiveBucket(group, flat, progress=progress)

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool = False) -> None:
        """Write or add the tensors in one native call."""
        pack(tensors, flat, accumulate)

    def square_sum(self, flat: torch.Tensor) -> float:
        """Return the sum of the squares, added in one order."""
        return square_sum(flat)

    def release(self, group: Group) -> None:
        """Return: groups free themselves."""

    def free(self) -> None:
        """Return: groups free themselves."""


class OnGpu:
    """A GPU: MPI and kernels where MPI takes its memory, else copies in pinned memory; NCCL where that is asked for.

    Parameters
    ----------
    compute
        The stream of the tasks, on which gradients are packed.
    gpu_aware
        Whether MPI is given the GPU's memory; the same on all ranks.
    nccl
        Whether what is in turn is summed and shared with NCCL, which would wait for ever for another order.
    """

    def __init__(
        self,
        gpu: GpuWithStreams,
        *,
        device: torch.device,
        compute: Any,
        gpu_aware: bool,
        nccl: bool = False,
        kernels: Kernels | None = None,
    ) -> None:
        self._gpu, self._compute, self._gpu_aware, self._nccl = gpu, compute, gpu_aware, nccl
        self.device = device
        self._kernels = make_kernels() if kernels is None else kernels
        self._side: Any = None
        self._groups: dict[Group, DeviceGroup] = {}
        self._nccl_groups: dict[int, NcclGroup] = {}  # by communicator: making one takes long, and it has no tags

    def bucket(self, group: Group, flat: torch.Tensor, *, in_turn: bool, progress: Progress = "poll") -> Collective:
        """Return the collectives of a buffer in this GPU's memory."""
        del progress
        if in_turn and self._nccl:
            from hpcpipe.collective.nccl import NcclBucket, NcclGroup

            ranks = MPI._handleof(group.comm)
            if ranks not in self._nccl_groups:
                self._nccl_groups[ranks] = NcclGroup(group.comm, gpu=self._gpu, compute=self._compute)
            return NcclBucket(self._nccl_groups[ranks], flat)
        if not self._gpu_aware:
            self._side = self._gpu.stream() if self._side is None else self._side
            return StagedBucket(group, flat, gpu=self._gpu, compute=self._compute, side=self._side)

        if group not in self._groups:
            self._groups[group] = DeviceGroup(group.comm, gpu=self._gpu, kernels=self._kernels, compute=self._compute)
        return DeviceBucket(self._groups[group], flat)

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor, accumulate: bool = False) -> None:
        """Write or add the tensors with one kernel, on the stream of the tasks."""
        self._kernels.pack([tensor.detach() for tensor in tensors], flat.detach(), accumulate, self._compute)

    def square_sum(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the sum of the squares, on the stream of the tasks."""
        return torch.linalg.vector_norm(flat, dtype=torch.float64) ** 2

    def release(self, group: Group) -> None:
        """Free the communicator of a group's buckets (collective); NCCL's serves those of the next one."""
        if (made := self._groups.pop(group, None)) is not None:
            made.free()

    def free(self) -> None:
        """Free the groups (collective)."""
        for group in self._groups.values():
            group.free()
        for nccl_group in self._nccl_groups.values():
            nccl_group.free()
        self._groups.clear()
        self._nccl_groups.clear()
