"""The CPU as a device: tasks are done when their call returns, buffers are ordinary memory.

It knows torch but neither MPI nor the plan.
"""

import os
import platform
import resource
from pathlib import Path

import torch

from hpcpipe.device.tensors import Description, describe, loaded, placed


class Cpu:
    """Runs tasks in the calling thread with this rank's share of the cores that `sharing_ranks` ranks may use.

    OMP_NUM_THREADS may say less: on cores that others use too, threads that wait for each other at every operation
    wait for the scheduler, and steps take a hundred times as long.
    """

    def __init__(self, *, sharing_ranks: int) -> None:
        self.threads = max(1, len(os.sched_getaffinity(0)) // sharing_ranks)
        asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # a list has one entry a nesting level
        if asked.isdecimal() and int(asked) > 0:
            self.threads = min(self.threads, int(asked))
        torch.set_num_threads(self.threads)
        self.device = torch.device("cpu")

    @property
    def name(self) -> str:
        """The processor's own name."""
        return _processor()

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """Return bytes for a message. torch aligns them to 64, so a payload behind a 64-byte header is aligned too."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def view(self, buffer: torch.Tensor) -> memoryview:
        """Return a buffer's bytes."""
        return buffer.numpy().data

    def head(self, buffer: torch.Tensor, num_bytes: int = 0) -> memoryview:
        """Return a buffer's bytes: a message is read and written where it lies."""
        del num_bytes
        return buffer.numpy().data

    def sealed(self, _buffer: torch.Tensor, _begin: int, _end: int) -> None:
        """Return that tensors are where they were stored."""

    def addressed(self, _buffer: torch.Tensor, _num_bytes: int) -> None:
        """Return that a header is where it was written."""

    def opened(self, _buffer: torch.Tensor, _num_bytes: int) -> None:
        """Return that a header can be read where it arrived."""

    def landed(self, _buffer: torch.Tensor, _begin: int, _end: int) -> None:
        """Return that tensors can be used where they arrived."""

    def describe(self, tensor: torch.Tensor) -> Description:
        """Return the name of a tensor's type, its shape, whether it wants a gradient, and its layout."""
        return describe(tensor)

    def store(self, tensor: torch.Tensor, buffer: torch.Tensor, at: int) -> None:
        """Copy a tensor into a buffer from byte `at` on, in its own layout if that has no gaps."""
        part, value = placed(tensor, buffer, at)
        part.copy_(value)

    def load(self, buffer: torch.Tensor, at: int, described: Description) -> torch.Tensor:
        """Return a tensor that is a view of a buffer, a new leaf."""
        return loaded(buffer, at, described)

    def peak_bytes(self) -> int:
        """Return the most memory that this process has held, in bytes (Linux reports KiB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def grown(self) -> str:
        """Return nothing: memory is the operating system's."""
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
