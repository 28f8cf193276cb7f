"""Steps whose gradients are summed by MPI's own all-reduce, in one after the backward or bucket by bucket in it.

Layers only take their time, in which MPI is called now and then, so that what it does beside may go on.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from mpi4py import MPI

from hpcpipe.bench.dataparallel.bound import FLOAT_BYTES
from hpcpipe.bench.dataparallel.models import Model
from hpcpipe.bench.dataparallel.ours import RATE
from hpcpipe.device.sleeping import sleep_precisely
from hpcpipe.runtime import now

if TYPE_CHECKING:
    from hpcpipe.runtime import World

_LOOK_EVERY_NS = 200_000


class MpiSums:
    """One replica of a model whose gradients lie in one buffer from the last layer to the first, in fp32.

    `bucket_bytes` is what an all-reduce in the backward sums at least, as far as there is so much; None for one after
    the backward. Gradients are where MPI wants them, without a copy.
    """

    def __init__(self, world: "World", model: Model, *, bucket_bytes: int | None) -> None:
        sleep_precisely()
        self._comm = world.comm.Dup()
        self._values, self._gradients = torch.zeros(model.numel), torch.zeros(model.numel)
        self._forward_ns = [round(ms * 1e6) for ms in model.forward_ms()]
        self._sums = dict(_buckets([layer.numel for layer in model.layers], bucket_bytes))
        self._whole = bucket_bytes is None

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns."""
        return [self._run() for _ in range(steps)]

    def free(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _run(self) -> int:
        under_way: list[MPI.Request] = []
        due = now()
        for forward in self._forward_ns:
            due += forward
            _until(due, under_way)
        for layer in reversed(range(len(self._forward_ns))):
            due = now() + 2 * self._forward_ns[layer]
            _until(due, under_way)
            if not self._whole and layer in self._sums:
                part = self._gradients[self._sums[layer]].numpy()
                under_way.append(self._comm.Iallreduce(MPI.IN_PLACE, part))
        if self._whole:
            self._comm.Allreduce(MPI.IN_PLACE, self._gradients.numpy())
        while not MPI.Request.Testall(under_way):
            time.sleep(20e-6)
        self._values.add_(self._gradients, alpha=-RATE / self._comm.size)
        return now()


def _until(due: int, under_way: "list[MPI.Request]") -> None:
    while (left := due - now()) > 0:
        if under_way:
            MPI.Request.Testall(under_way)
            left = min(left, _LOOK_EVERY_NS)
        time.sleep(left * 1e-9)


def _buckets(numels: list[int], bucket_bytes: int | None) -> Iterator[tuple[int, slice]]:
    """Return the parts of the buffer, each by the layer whose gradient is its last to be final."""
    begin = end = 0
    for layer in reversed(range(len(numels))):
        end += numels[layer]
        full = bucket_bytes is not None and FLOAT_BYTES * (end - begin) >= bucket_bytes
        if end > begin and (full or layer == 0):
            yield layer, slice(begin, end)
            begin = end
