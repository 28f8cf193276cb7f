"""Tensor-parallel collectives with NCCL: enqueued behind the task's kernels, so the host waits for nothing.

What slices agree on, and their meetings, stay on MPI.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpcpipe.collective.device_ring import GpuWithStreams
from hpcpipe.collective.nccl import SUM, TYPES, NcclGroup
from hpcpipe.collective.tensor import TensorGroup, Waiting

if TYPE_CHECKING:
    import torch

_BYTES = 1
"""ncclUint8."""


class NcclTensorGroup(TensorGroup):
    """Like `TensorGroup`, for slices that have a GPU each.

    Sums are made in the tensor's type in NCCL's order, with the same bits on all slices. All slices enqueue the same
    collectives in the same order, as they agree on their tasks.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        gpu: GpuWithStreams,
        compute: Any,
        waiting: Waiting,
        describe: Callable[[int], str] = str,
        lost: type[Exception] = ConnectionError,
        nccl: Any = None,
    ) -> None:
        super().__init__(comm, waiting=waiting, describe=describe, lost=lost)
        self._compute = compute
        self._nccl = NcclGroup(comm, gpu=gpu, compute=compute, nccl=nccl)

    def all_reduce(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the sum of the slices' tensors, of one shape and type on all, as a new one."""
        self._begin("all-reduce", tensor.nbytes)
        value = tensor.detach().contiguous()
        result = value.new_empty(value.shape)
        if value.numel():
            self._nccl.nccl.allReduce(
                value.data_ptr(), result.data_ptr(), value.numel(), TYPES[value.dtype], SUM, self._stream
            )
        self._end()
        return result

    def all_gather(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the slices' tensors, of one shape and type on all, stacked in a new first dimension."""
        self._begin("all-gather", tensor.nbytes)
        value = tensor.detach().contiguous()
        result = value.new_empty((self.count, *value.shape))
        if value.numel():
            self._nccl.nccl.allGather(value.data_ptr(), result.data_ptr(), value.nbytes, _BYTES, self._stream)
        self._end()
        return result

    def free(self) -> None:
        """End NCCL's communicator (collective)."""
        self._nccl.free()
        super().free()

    @property
    def _stream(self) -> int:
        return int(self._compute.cuda_stream)
