"""NCCL through cupy, for replicas or tensor slices whose GPUs NVLink joins: the same surface as the other collectives.

MPI introduces the ranks to each other; what they agree on stays there. Needs cupy, an NVIDIA GPU for each rank and
NCCL; all is imported when a group is made, so that nothing else needs it.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from mpi4py import MPI

from hpcpipe.collective.abi import MpiError
from hpcpipe.collective.bucket import check_alike
from hpcpipe.collective.device_kernels import load_cupy
from hpcpipe.collective.device_ring import GpuWithStreams
from hpcpipe.collective.group import checked

TYPES = {torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}
"""ncclDataType_t, which cupy does not name for bfloat16."""

SUM = 0
"""ncclSum."""

NCCL_FIX = "pip install 'hpcpipe[cuda]' (with CUDA 12 [cuda12]), which brings cupy and NCCL, or set it to \"mpi\""


class NcclMissingError(RuntimeError):
    """NCCL cannot be used here; the message says why and what to do."""


class NcclGroup:
    """Ranks that own NCCL buckets together: one communicator of NCCL, one stream.

    All ranks start their operations in the same order, as NCCL asks; the stream carries them out one after the other.

    Parameters
    ----------
    comm
        Each rank has a GPU of its own.
    nccl
        cupy's module, where it is not to be looked for.

    Raises
    ------
    NcclMissingError
        cupy or NCCL is not installed on some rank; raised on all of them (collective).
    """

    def __init__(self, comm: MPI.Intracomm, *, gpu: GpuWithStreams, compute: Any, nccl: Any = None) -> None:
        self.comm, self.gpu, self.compute = checked(comm), gpu, compute
        self._nccl = nccl if nccl is not None else _found()[0]
        here = np.array([0 if self._nccl is None else 1], dtype=np.int64)
        comm.Allreduce(MPI.IN_PLACE, here, op=MPI.MIN)
        if not here[0]:
            raise NcclMissingError(f"collectives with NCCL need cupy and NCCL on every rank: {NCCL_FIX}")
        self.side = gpu.stream()
        name = np.zeros(128, dtype=np.uint8)
        if comm.rank == 0:
            name[:] = np.frombuffer(self._nccl.get_unique_id(), dtype=np.uint8)
        comm.Bcast(name)
        self.nccl = self._nccl.NcclCommunicator(comm.size, name.tobytes(), comm.rank)

    def enqueue(self, call: Callable[[int], None]) -> Any:
        """Enqueue a call of NCCL behind the work of the compute stream; return the event that ends it."""
        produced, ended = self.gpu.event(), self.gpu.event()
        produced.record(self.compute)
        self.gpu.wait(self.side, produced)
        call(int(self.side.cuda_stream))
        ended.record(self.side)
        return ended

    def check(self) -> None:
        """Raise MpiError if another rank has been lost, where this NCCL can say so."""
        ask = getattr(self.nccl, "check_async_error", None)
        if ask is None:
            return
        try:
            ask()
        except Exception as error:
            raise MpiError(f"rank {self.comm.rank}: a collective of NCCL failed: {error}") from error

    def free(self) -> None:
        """End the communicator of NCCL."""
        self.nccl.destroy()


class NcclBucket:
    """Reduce-scatter and all-gather of one buffer in place; like `CollectiveBucket`.

    The order of sums is NCCL's: the same on all ranks and, on the same machine with the same settings, in every run,
    but not that of the other buckets.
    """

    def __init__(self, group: NcclGroup, flat: torch.Tensor) -> None:
        size, rank = group.comm.size, group.comm.rank
        check_alike(group.comm, flat, ("ring", "ring"), 0)
        if len(flat) % size:
            raise ValueError(f"a buffer of {len(flat)} elements does not divide by {size} ranks: pad it to a multiple")
        self._group, self.flat, self._type = group, flat, TYPES[flat.dtype]
        self._block = len(flat) // size
        self.shard = slice(rank * self._block, (rank + 1) * self._block)
        self._under_way: Any = None

    def start_reduce_scatter(self) -> None:
        """Start summing; when done, `flat[shard]` holds the sum."""
        whole, part = self._pointers()
        nccl, count = self._group.nccl, self._block
        self._start(lambda stream: nccl.reduceScatter(whole, part, count, self._type, SUM, stream))

    def start_all_gather(self) -> None:
        """Start sharing; when done, `flat` holds every rank's shard in its place."""
        whole, part = self._pointers()
        nccl, count = self._group.nccl, self._block
        self._start(lambda stream: nccl.allGather(part, whole, count, self._type, stream))

    def start_all_reduce(self) -> None:
        """Start both, one after the other."""
        whole, part = self._pointers()
        nccl, count = self._group.nccl, self._block

        def both(stream: int) -> None:
            nccl.reduceScatter(whole, part, count, self._type, SUM, stream)
            nccl.allGather(part, whole, count, self._type, stream)

        self._start(both)

    def test(self) -> bool:
        """Return True when nothing is under way; never blocks."""
        if self._under_way is None:
            return True
        if not self._under_way.query():
            self._group.check()
            return False
        self._under_way = None
        return True

    def wait(self, poll: Literal["spin", "yield", "sleep"] = "yield") -> None:
        """Return when nothing is under way; `poll` says what the core does meanwhile."""
        while not self.test():
            if poll != "spin":
                time.sleep(0 if poll == "yield" else 5e-5)

    def free(self) -> None:
        """Raise RuntimeError while something is under way; the group holds what is to be freed."""
        if self._under_way is not None:
            raise RuntimeError("this bucket is under way: wait for it before it is freed")

    def _pointers(self) -> tuple[int, int]:
        return self.flat.data_ptr(), self.flat.data_ptr() + self.shard.start * self.flat.itemsize

    def _start(self, call: Callable[[int], None]) -> None:
        if self._under_way is not None:
            raise RuntimeError("an operation of this bucket is still under way: wait for it first")
        if self._block:
            self._under_way = self._group.enqueue(call)


def why_missing() -> str:
    """Return why NCCL cannot be used in this process, in words; empty if it can."""
    return _found()[1]


def _found() -> tuple[Any, str]:
    """Return cupy's NCCL, or None and why it cannot be used; the library is torch's, which has loaded it before."""
    try:
        with warnings.catch_warnings(record=True) as said:  # cupy warns of what it does not find
            warnings.simplefilter("always")
            load_cupy()
            from cupy.cuda import nccl
    except Exception as error:  # of its many kinds
        return None, f"cupy cannot be used ({' '.join(str(error).split())})"
    if getattr(nccl, "available", False):
        return nccl, ""
    reasons = [" ".join(str(each.message).split()) for each in said if "nccl" in str(each.message)]
    return None, f"cupy finds no NCCL ({reasons[0]})" if reasons else "cupy finds no NCCL"
