"""The CPU as a device: tasks are done when their call returns, buffers are ordinary memory.

It knows torch but neither MPI nor the plan.
"""

import os
import platform
import resource
from math import prod
from pathlib import Path

import torch

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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

    def describe(self, tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bool, tuple[int, ...]]:
        """Return the name of a tensor's type, its shape, whether it wants a gradient, and its layout."""
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"it holds a {type(tensor).__name__}, which is neither a tensor nor a plain value")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ValueError(
                f"it holds a tensor of layout {tensor.layout} and type {tensor.dtype}; make it dense first"
            )
        order = () if tensor.is_contiguous() else _order(tensor)
        return _NAMES.get(tensor.dtype) or str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, order

    def store(self, tensor: torch.Tensor, buffer: torch.Tensor, at: int) -> None:
        """Copy a tensor into a buffer from byte `at` on, in its own layout if that has no gaps."""
        value = tensor.detach()
        if not value.is_contiguous() and (order := _order(value)):
            value = value.permute(order)
        buffer[at : at + value.nbytes].view(value.dtype).view(value.shape).copy_(value)

    def load(
        self, buffer: torch.Tensor, at: int, described: tuple[str, tuple[int, ...], bool, tuple[int, ...]]
    ) -> torch.Tensor:
        """Return a tensor that is a view of a buffer, a new leaf."""
        dtype, shape, wants_gradient, order = described
        kind = _DTYPES[dtype]
        value = buffer[at : at + kind.itemsize * prod(shape)].view(kind)
        if order:
            places = [order.index(dim) for dim in range(len(order))]
            value = value.view([shape[dim] for dim in order]).permute(places)
        else:
            value = value.view(shape)
        # .data, not .detach(): what is changed in place must not count as a change of the message's other tensors
        return value.data.requires_grad_() if wants_gradient else value.data

    def peak_bytes(self) -> int:
        """Return the most memory that this process has held, in bytes (Linux reports KiB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest; empty where that leaves gaps or overlaps."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))
    return order if tensor.permute(order).is_contiguous() else ()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
