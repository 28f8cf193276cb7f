"""What hpcpipe asks of a GPU, as one thin object: streams, events, asynchronous copies, memory, ranges for profilers.

Everything of torch.cuda that the package uses is behind it, so that tests can put a GPU in its place that never was.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

Stream = Any
"""A queue of work that is done in order; opaque."""


class Counters(NamedTuple):
    """Memory: the most bytes that tensors took, how often the allocator asked the GPU for more, how often in vain."""

    peak_bytes: int
    device_allocs: int
    retries: int


class Event(Protocol):
    """A mark in a stream. It may be recorded again once nobody asks for what it marked before."""

    def record(self, stream: Stream) -> None:
        """Mark what is in the stream so far."""

    def query(self) -> bool:
        """Return whether the stream has come to the mark; never blocks."""

    def elapsed_ns(self, later: "Event") -> int:
        """Return the time from this mark to a later one, both passed.

        CUDA tells it in milliseconds of 24 bits: to 0.5 µs at best, and to 1 µs after 16 s.
        """


class Gpu(Protocol):
    """One GPU as one rank uses it. None of it blocks but `synchronize`."""

    device: torch.device
    name: str

    def stream(self) -> Stream:
        """Return a new stream, which waits for no other one unless it is told to."""

    def event(self) -> Event:
        """Return a new event that times."""

    def use(self, stream: Stream) -> None:
        """Let this thread's work go to a stream from now on."""

    def on(self, stream: Stream) -> Any:
        """Return a context in which this thread's work, and memory for it, is a stream's."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream go on only when an event has passed; the host goes on."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Copy bytes in a stream; memory of the host that takes part is pinned."""

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes on the GPU that are free for what the current stream does next."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return bytes of the host that the GPU copies by itself."""

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep a tensor's memory, once nobody has the tensor, until a stream is done with what it has to do now."""

    def counters(self) -> Counters:
        """Return what the memory of this process's tensors took."""

    def synchronize(self) -> None:
        """Wait until the GPU has done everything."""

    def range_push(self, label: str) -> None:
        """Begin a range that profilers show."""

    def range_pop(self) -> None:
        """End the range begun last."""


_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class _Event:
    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self.record, self.query = self._event.record, self._event.query

    def elapsed_ns(self, later: Event) -> int:
        assert isinstance(later, _Event)
        return round(self._event.elapsed_time(later._event) * 1e6)


class TorchGpu:
    """A GPU that torch sees. Its streams are torch's, which do not wait for the default stream nor it for them."""

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        self.device = torch.device("cuda", index)
        self.name = torch.cuda.get_device_name(index)

    def stream(self) -> torch.cuda.Stream:
        """Return a new stream (torch deals them from a pool of 32)."""
        return torch.cuda.Stream(self.device)

    def event(self) -> Event:
        """Return a new event that times."""
        return _Event()

    def use(self, stream: torch.cuda.Stream) -> None:
        """Let this thread's work go to a stream from now on."""
        torch.cuda.set_stream(stream)

    def on(self, stream: torch.cuda.Stream) -> Any:
        """Return a context in which this thread's work goes to a stream."""
        return torch.cuda.stream(stream)

    def wait(self, stream: torch.cuda.Stream, event: Event) -> None:
        """Let a stream go on only when an event has passed."""
        assert isinstance(event, _Event)
        stream.wait_event(event._event)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Copy bytes in a stream."""
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes on the GPU from the blocks of the current stream."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked bytes of the host."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def lend(self, tensor: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Keep a tensor's memory for a stream that it was not made on."""
        tensor.record_stream(stream)

    def counters(self) -> Counters:
        """Return what torch's allocator counts; asking it takes some 0.1 ms."""
        stats = torch.cuda.memory_stats(self.device)
        allocs = stats.get("num_device_alloc", stats.get("segment.all.allocated", 0))
        return Counters(stats.get("allocated_bytes.all.peak", 0), allocs, stats.get("num_alloc_retries", 0))

    def synchronize(self) -> None:
        """Wait until the GPU has done everything."""
        torch.cuda.synchronize(self.device)

    def range_push(self, label: str) -> None:
        """Begin an NVTX range."""
        torch.cuda.nvtx.range_push(label)

    def range_pop(self) -> None:
        """End the range begun last."""
        torch.cuda.nvtx.range_pop()


def num_gpus() -> int:
    """Return how many GPUs torch sees in this process; 0 where it was built without CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def why_none() -> str:
    """Return why torch sees no GPU in this process, in words; empty if it sees one."""
    if num_gpus():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA; install one that was built for this machine's driver"
    hidden = [f"{name}={os.environ[name]!r}" for name in _HIDING if os.environ.get(name) in ("", "-1")]
    if hidden:
        return f"{' and '.join(hidden)} hides them"
    try:
        torch.cuda.init()
    except Exception as error:  # RuntimeError, or one of the driver's own kind
        return f"torch {torch.__version__}: {' '.join(str(error).split())}"
    return f"torch {torch.__version__} finds none, though its driver answers"


def identity(index: int) -> str:
    """Return what tells a GPU from every other one of its host, whatever this process calls it."""
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    return str(uuid) if uuid is not None else f"{properties.name} number {index}"


def seed_generators(value: int) -> None:
    """Seed what layers of this rank draw from, on the CPU and on its GPU, with the draws of `torch.manual_seed`.

    That costs a hundred times as much: for each kind of device that was never used it keeps the stack of its caller.
    """
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value)


@contextmanager
def ranged(gpu: Gpu, label: str) -> Iterator[None]:
    """Show profilers what is given to a GPU within."""
    gpu.range_push(label)
    try:
        yield
    finally:
        gpu.range_pop()
