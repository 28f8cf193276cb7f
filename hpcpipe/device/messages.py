"""Message buffers of a GPU: in its memory where MPI reads that, else in pinned host memory with copies at both ends.

Nothing here blocks: each step of a message's life is enqueued on a copy stream and over when an event says so. It knows
neither MPI nor what messages mean. Streams, events and memory come from a thin object around torch.cuda (gpu.py).
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from hpcpipe.device.pinned import PinnedPool
from hpcpipe.device.tensors import Description, describe, loaded, placed

HEAD_BYTES = 4096
"""What is copied of a message at least to read its header: no slower than 64 bytes, and enough for some 100 tensors."""

Stream = Any


class Event(Protocol):
    """A mark on a stream."""

    def record(self, stream: Stream) -> None:
        """Set the mark behind what has been enqueued on the stream so far."""

    def query(self) -> bool:
        """Return whether the stream has come past it; never blocks."""


class Gpu(Protocol):
    """What messages need of a GPU."""

    def event(self) -> Event:
        """Return a new mark."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make a stream the one that is allocated for."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Let a stream wait for a mark of another; the host does not wait."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Stream) -> None:
        """Enqueue a copy; host memory is pinned."""

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Return bytes in the GPU's memory."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return pinned bytes of the host."""

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Note that a stream uses memory of another, which must not give it to a new tensor before that has ended."""


class Message:
    """The memory of one message. `host` is all of it (staged) or its header (direct)."""

    __slots__ = ("__weakref__", "copied", "device", "host", "produced", "waits")

    def __init__(self, gpu: Gpu) -> None:
        self.host: torch.Tensor
        self.device: torch.Tensor | None = None
        self.produced, self.copied = gpu.event(), gpu.event()
        self.waits = False


class Copied:
    """A copy that is made when its event says so; the message stays until then."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def done(self) -> bool:
        """Return whether it is made."""
        return self._message.copied.query()


class DeviceBytes:
    """Bytes of a GPU as MPI is given them: by their address, in the form that numba and cupy have agreed on.

    mpi4py holds this object, and by it the memory, while a request uses it.
    """

    __slots__ = ("_bytes",)

    def __init__(self, memory: torch.Tensor) -> None:
        self._bytes = memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where the bytes lie (CUDA Array Interface, version 3); nobody need wait for a stream: events were asked."""
        return {
            "version": 3,
            "shape": (len(self._bytes),),
            "typestr": "|u1",
            "data": (self._bytes.data_ptr(), False),
            "strides": None,
            "stream": None,
        }

    def __len__(self) -> int:
        return len(self._bytes)

    def __getitem__(self, part: slice) -> "DeviceBytes":
        return DeviceBytes(self._bytes[part])


class _OnGpu:
    """What both kinds of message memory share.

    Parameters
    ----------
    compute
        The stream that tasks run on.
    inward, outward
        Those that messages are copied on, to where tasks read them and from where tasks wrote them.
    """

    def __init__(self, gpu: Gpu, *, compute: Stream, inward: Stream, outward: Stream) -> None:
        self._gpu = gpu
        self._compute, self._inward, self._outward = compute, inward, outward
        self.pool = PinnedPool(gpu.pinned)

    def describe(self, tensor: torch.Tensor) -> Description:
        """Return the name of a tensor's type, its shape, whether it wants a gradient, and its layout."""
        return describe(tensor)

    def load(self, buffer: Message, at: int, described: Description) -> torch.Tensor:
        """Return a tensor that is a view of a message in the GPU's memory, a new leaf."""
        assert buffer.device is not None, "nothing has landed in this buffer"
        self._gpu.lend(buffer.device, self._compute)
        return loaded(buffer.device, at, described)

    def _allocate(self, num_bytes: int, stream: Stream) -> torch.Tensor:
        """Return memory that only a copy stream has used: what tasks freed, they may still be reading."""
        with self._gpu.on(stream):
            return self._gpu.empty(num_bytes)

    def _copy_out(self, buffer: Message, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy what tasks made, behind all that has been enqueued for them."""
        if not buffer.waits:
            buffer.produced.record(self._compute)
            self._gpu.wait(self._outward, buffer.produced)
            buffer.waits = True
        self._gpu.copy(target, source, self._outward)

    def sealed(self, buffer: Message, begin: int, end: int) -> Copied | None:
        """Return when the stored tensors are where MPI reads them; whoever stored them keeps them until then."""
        del begin, end
        if not buffer.waits:  # no tensors
            return None
        buffer.waits = False
        buffer.copied.record(self._outward)
        return Copied(buffer)


class Staged(_OnGpu):
    """Messages in pinned host memory, for an MPI that must not see a GPU's.

    MPI sends from and receives into the pinned memory; each message has its own, so the copies of one go on while MPI
    moves others. In the GPU's memory a message has a place from the first time it is received there.
    """

    def buffer(self, num_bytes: int) -> Message:
        """Return pinned memory for a message."""
        message = Message(self._gpu)
        message.host = self.pool.take(num_bytes, message)
        return message

    def view(self, buffer: Message) -> memoryview:
        """Return the pinned bytes."""
        return buffer.host.numpy().data

    def head(self, buffer: Message, num_bytes: int = 0) -> memoryview:
        """Return the pinned bytes: the header is read and written where MPI has it."""
        del num_bytes
        return buffer.host.numpy().data

    def store(self, tensor: torch.Tensor, buffer: Message, at: int) -> None:
        """Enqueue the copy of a tensor to the host, from byte `at` on."""
        self._copy_out(buffer, *placed(tensor, buffer.host, at))

    def addressed(self, _buffer: Message, _num_bytes: int) -> None:
        """Return that the header is where it was written."""

    def opened(self, _buffer: Message, _num_bytes: int) -> None:
        """Return that the header can be read where it arrived."""

    def landed(self, buffer: Message, begin: int, end: int) -> Copied | None:
        """Enqueue the copy of the tensors to the GPU and return when it is made."""
        if buffer.device is None:
            buffer.device = self._allocate(len(buffer.host), self._inward)
        if begin >= end:
            return None
        self._gpu.copy(buffer.device[begin:end], buffer.host[begin:end], self._inward)
        buffer.copied.record(self._inward)
        return Copied(buffer)


class Direct(_OnGpu):
    """Messages in the GPU's memory, for an MPI that is CUDA-aware.

    The header lies there too, before the tensors, so that a message is one piece on the wire and the other end may hold
    its own elsewhere. Its few bytes are copied from and to pinned memory of the host.
    """

    def buffer(self, num_bytes: int) -> Message:
        """Return memory of the GPU for a message, with room for its header on the host."""
        message = Message(self._gpu)
        message.device = self._allocate(num_bytes, self._outward)
        message.host = self.pool.take(min(num_bytes, HEAD_BYTES), message)
        return message

    def view(self, buffer: Message) -> DeviceBytes:
        """Return the GPU's bytes."""
        assert buffer.device is not None
        return DeviceBytes(buffer.device)

    def head(self, buffer: Message, num_bytes: int = 0) -> memoryview:
        """Return the header's bytes on the host, of which there are as many as asked for."""
        if len(buffer.host) < num_bytes:
            buffer.host = self.pool.take(num_bytes, buffer)  # the shorter one comes back with the message
        return buffer.host.numpy().data

    def store(self, tensor: torch.Tensor, buffer: Message, at: int) -> None:
        """Enqueue the copy of a tensor into the message, from byte `at` on."""
        assert buffer.device is not None
        self._copy_out(buffer, *placed(tensor, buffer.device, at))

    def addressed(self, buffer: Message, num_bytes: int) -> Copied:
        """Enqueue the copy of the header to the GPU and return when it is made."""
        assert buffer.device is not None
        self._gpu.copy(buffer.device[:num_bytes], buffer.host[:num_bytes], self._outward)
        buffer.copied.record(self._outward)
        return Copied(buffer)

    def opened(self, buffer: Message, num_bytes: int) -> Copied:
        """Enqueue the copy of the message's first bytes to the host and return when it is made."""
        assert buffer.device is not None
        size = min(max(num_bytes, HEAD_BYTES), len(buffer.device))
        self.head(buffer, size)
        self._gpu.copy(buffer.host[:size], buffer.device[:size], self._inward)
        buffer.copied.record(self._inward)
        return Copied(buffer)

    def landed(self, _buffer: Message, _begin: int, _end: int) -> None:
        """Return that the tensors can be used where they arrived."""
