"""Sums and shares of a buffer on a GPU through pinned host memory, for an MPI that must not see the GPU's.

The native module does them, between a copy out and a copy in that the GPU makes by itself; nothing here blocks.
"""

import time
from collections.abc import Callable
from typing import Any, Literal

import torch

from hpcpipe.collective.bucket import CollectiveBucket
from hpcpipe.collective.device_ring import GpuWithStreams
from hpcpipe.collective.group import Group


class StagedBucket:
    """Like `DeviceBucket`, and with the same bits; it holds a pinned copy of the buffer.

    Between the copies the collective goes on as it does on a CPU: what crosses the bus is what a ring through the host
    would bring across it anyway.
    """

    def __init__(self, group: Group, flat: torch.Tensor, *, gpu: GpuWithStreams, compute: Any, side: Any) -> None:
        self._gpu, self._compute, self._side, self.flat = gpu, compute, side, flat
        self._host = gpu.pinned(flat.nbytes).view(flat.dtype)
        self._host.zero_()
        self._bucket = CollectiveBucket(group, self._host)
        self.shard = self._bucket.shard
        self._event, self._produced = gpu.event(), gpu.event()
        self._phase: Literal["idle", "out", "ring", "in"] = "idle"
        self._whole = slice(0, len(flat))
        self._result = self._whole

    def start_reduce_scatter(self) -> None:
        """Start summing; when done, `flat[shard]` holds the sum."""
        self._copy_out(self._whole, self._bucket.start_reduce_scatter, self.shard)

    def start_all_gather(self) -> None:
        """Start sharing; when done, `flat` holds every rank's shard in its place."""
        self._copy_out(self.shard, self._bucket.start_all_gather, self._whole)

    def start_all_reduce(self) -> None:
        """Start both, one after the other."""
        self._copy_out(self._whole, self._bucket.start_all_reduce, self._whole)

    def test(self) -> bool:
        """Do what can be done now, never block; return True when nothing is under way."""
        if self._phase == "out" and self._event.query():
            self._begin()
            self._phase = "ring"
        if self._phase == "ring" and self._bucket.test():
            self._gpu.copy(self.flat[self._result], self._host[self._result], self._side)
            self._event.record(self._side)
            self._phase = "in"
        if self._phase == "in" and self._event.query():
            self._phase = "idle"
        return self._phase == "idle"

    def wait(self, poll: Literal["spin", "yield", "sleep"] = "yield") -> None:
        """Return when nothing is under way; `poll` says what the core does meanwhile."""
        while not self.test():
            if poll != "spin":
                time.sleep(0 if poll == "yield" else 5e-5)

    def free(self) -> None:
        """Free the requests; raise RuntimeError while something is under way."""
        if self._phase in ("out", "in"):
            raise RuntimeError("this bucket is under way: wait for it before it is freed")
        self._bucket.free()

    def _copy_out(self, part: slice, begin: Callable[[], None], result: slice) -> None:
        if self._phase != "idle":
            raise RuntimeError("an operation of this bucket is still under way: wait for it first")
        self._begin, self._result = begin, result
        self._produced.record(self._compute)
        self._gpu.wait(self._side, self._produced)
        self._gpu.copy(self._host[part], self.flat[part], self._side)
        self._event.record(self._side)
        self._phase = "out"
