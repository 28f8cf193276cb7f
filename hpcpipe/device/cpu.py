"""The CPU as a device: tasks are done when their call returns, buffers are ordinary memory.

It knows torch but neither MPI nor the plan.
"""

import os
import platform
import resource
from pathlib import Path

import torch


class Cpu:
    """Runs tasks in the calling thread with this rank's share of the cores that `sharing_ranks` ranks may use."""

    def __init__(self, *, sharing_ranks: int) -> None:
        self.threads = max(1, len(os.sched_getaffinity(0)) // sharing_ranks)
        torch.set_num_threads(self.threads)
        self.device = torch.device("cpu")

    @property
    def name(self) -> str:
        """The processor's own name."""
        return _processor()

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """Return bytes for a message. torch aligns them to 64, so a payload behind a 64-byte header is aligned too."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def peak_bytes(self) -> int:
        """Return the most memory that this process has held, in bytes (Linux reports KiB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
