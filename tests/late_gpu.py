"""A GPU that is none: its streams do what they were given late, in pieces and in any order that CUDA allows.

Its memory is the host's. What has not been copied yet is garbage, so whoever reads too early sees it. Where a variable
says so (tests/gpu/test_between_ranks.py sets it), the same tests have a real GPU instead.
"""

import ctypes
import os
import random
from collections import deque
from contextlib import contextmanager

import numpy as np
import torch

GARBAGE = 0xA5

REAL = os.environ.get("HPCPIPE_TEST_ON_GPU", "")
"""Empty: play one. "staged": a real one; "direct": a real one, and MPI takes its memory."""


def make_gpu(seed):
    return RealGpu() if REAL else LateGpu(seed)


class LateStream:
    """Operations in order; `done` of them have been carried out. Its handle is its number."""

    def __init__(self, number):
        self.cuda_stream = number
        self.queue = deque()
        self.enqueued = self.done = 0

    def add(self, operation):
        self.queue.append(operation)
        self.enqueued += 1


class LateEvent:
    def __init__(self, gpu):
        self._gpu = gpu
        self._stream, self._mark = None, 0

    def record(self, stream):
        self._stream, self._mark = stream, stream.enqueued

    def query(self):
        self._gpu.go_on()
        return self.passed

    @property
    def passed(self):
        return self._stream is None or self._stream.done >= self._mark

    def frozen(self):
        """Return the event as it is now: recording it again later does not change what was waited for."""
        copy = LateEvent(self._gpu)
        copy._stream, copy._mark = self._stream, self._mark
        return copy


class LateGpu:
    """What the messages and the rings of hpcpipe need of a GPU.

    `stopped` streams do nothing, whatever is asked.
    """

    device = torch.device("cpu")

    def __init__(self, seed, *, pace=0.3):
        self._random = random.Random(seed)
        self._pace = pace
        self.streams = []
        self.stopped = False
        self.compute, self.inward, self.outward = self.stream(), self.stream(), self.stream()
        self.allocated = 0

    def stream(self):
        self.streams.append(LateStream(len(self.streams)))
        return self.streams[-1]

    def event(self):
        return LateEvent(self)

    @contextmanager
    def on(self, stream):
        yield

    def current(self):
        return self.compute

    def wait(self, stream, event):
        stream.add(event.frozen())

    def copy(self, target, source, stream):
        assert target.shape == source.shape and target.dtype == source.dtype
        stream.add(lambda: target.copy_(source))

    def launch(self, kernel, stream=None):
        """Enqueue a Python function as a kernel."""
        (stream or self.compute).add(kernel)

    def empty(self, num_bytes):
        self.allocated += 1
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def pinned(self, num_bytes):
        return torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)

    def lend(self, tensor, stream):
        pass

    def go_on(self):
        """Carry out a few operations of streams drawn by chance."""
        if self.stopped:
            return
        for stream in self._random.sample(self.streams, len(self.streams)):
            while stream.queue and self._random.random() < self._pace:
                operation = stream.queue[0]
                if isinstance(operation, LateEvent):
                    if not operation.passed:
                        break
                else:
                    operation()
                stream.queue.popleft()
                stream.done += 1

    def synchronize(self):
        while any(stream.queue for stream in self.streams):
            self.go_on()


class RealGpu:
    """A GPU that torch sees, with what the tests ask besides; every kernel comes after one that takes its time."""

    def __init__(self):
        from hpcpipe.device.gpu import TorchGpu

        self._gpu = TorchGpu(0)
        self.compute, self.inward, self.outward = (self._gpu.stream() for _ in range(3))
        self.allocated = 0
        torch.cuda.set_stream(self.compute)

    def __getattr__(self, name):
        return getattr(self._gpu, name)

    def empty(self, num_bytes):
        self.allocated += 1
        return self._gpu.empty(num_bytes)

    def launch(self, kernel, stream=None):
        with torch.cuda.stream(stream or self.compute):
            torch.cuda._sleep(200_000)
            kernel()


class LateNccl:
    """NCCL on such GPUs: an operation is carried out, by MPI, when its stream comes to it."""

    def __init__(self, gpu, comm):
        self._gpu, self._comm = gpu, comm
        self.made = self.destroyed = 0
        self.NcclCommunicator = self._make

    def get_unique_id(self):
        assert self._comm.rank == 0
        return bytes(range(128))

    def _make(self, size, name, rank):
        self.made += 1
        assert isinstance(name, bytes), "cupy takes nothing else"
        assert (size, name, rank) == (self._comm.size, bytes(range(128)), self._comm.rank)
        return self

    def reduceScatter(self, whole, part, count, kind, operation, stream):  # noqa: N802 - cupy's name
        def run():
            total = self._total(whole, count * self._comm.size, kind)
            rank = self._comm.rank
            self._memory(part, count, kind)[:] = total[rank * count : (rank + 1) * count]

        assert operation == 0
        self._on(stream, run)

    def allReduce(self, source, target, count, kind, operation, stream):  # noqa: N802
        def run():
            self._memory(target, count, kind)[:] = self._total(source, count, kind)

        assert operation == 0
        self._on(stream, run)

    def allGather(self, part, whole, count, kind, stream):  # noqa: N802
        def run():
            rows = self._comm.allgather(self._memory(part, count, kind).copy())
            self._memory(whole, count * self._comm.size, kind)[:] = np.concatenate(rows)

        self._on(stream, run)

    def destroy(self):
        self.destroyed += 1

    def _on(self, stream, run):
        self._gpu.streams[stream].add(run)

    def _total(self, pointer, count, kind):
        return sum(self._comm.allgather(self._memory(pointer, count, kind).copy()))

    def _memory(self, pointer, count, kind):
        dtype = np.dtype({1: np.uint8, 6: np.float16, 7: np.float32, 8: np.float64}[kind])
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer)
        return np.frombuffer(memory, dtype=dtype)
