"""One direction of one edge of the pipeline: persistent receives into slots, and nonblocking sends from pooled buffers.

A slot is given back when its tensor is no longer needed; for an activation that is after its backward, so the slot is
the stash. The sender's in-flight cap bounds the slots that can be filled, so messages do not pile up inside MPI: at
most one can meet a slot that is just being posted again.
"""

from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from hpcpipe.runtime.clock import now
from hpcpipe.runtime.header import HEADER_BYTES, Header

if TYPE_CHECKING:
    from mpi4py import MPI

_TAG = 0


class Allocator(Protocol):
    """Gives message buffers where the device wants them."""

    def buffer(self, num_bytes: int) -> torch.Tensor:
        """Return `num_bytes` bytes as a uint8 tensor that MPI can read and write."""


class Arrival(NamedTuple):
    """A received tensor (a view of its slot), its header, and when its receive had been posted (ns)."""

    header: Header
    tensor: torch.Tensor
    slot: int
    posted: int


class Sent(NamedTuple):
    """A send that MPI has completed; times in ns."""

    header: Header
    posted: int


def _bytes_of(buffer: torch.Tensor) -> memoryview:
    return buffer.numpy().data


class ReceiveChannel:
    """Slots with a persistent receive each, all posted before they are needed."""

    def __init__(
        self, comm: "MPI.Intracomm", source: int, *, slots: int, payload_bytes: int, allocator: Allocator
    ) -> None:
        from mpi4py import MPI

        self._buffers = [allocator.buffer(HEADER_BYTES + payload_bytes) for _ in range(slots)]
        self._views = [_bytes_of(buffer) for buffer in self._buffers]
        self.requests = [comm.Recv_init([view, MPI.BYTE], source, MPI.ANY_TAG) for view in self._views]
        # A completed persistent request tests as complete for ever, so the channel itself knows which are under way.
        self._active = [False] * slots
        self._posted = [0] * slots
        for slot in range(slots):
            self.release(slot)

    def release(self, slot: int) -> None:
        """Give the slot back: post its receive again."""
        assert not self._active[slot], f"slot {slot} was given back twice"
        self._active[slot] = True
        self._posted[slot] = now()
        self.requests[slot].Start()

    def take(self, slot: int) -> Arrival:
        """Return what arrived in a slot whose request has completed."""
        assert self._active[slot], f"slot {slot} completed while no receive was posted"
        self._active[slot] = False
        header = Header.unpack_from(self._views[slot])
        payload = self._buffers[slot][HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
        return Arrival(header, payload.view(header.dtype).view(header.shape), slot, self._posted[slot])

    def free(self) -> None:
        """Cancel the posted receives and free the requests."""
        for slot, request in enumerate(self.requests):
            if self._active[slot]:
                request.Cancel()
                request.Wait()
            request.Free()


class SendChannel:
    """Nonblocking sends to one neighbour; a buffer is reused when its request has completed."""

    def __init__(self, comm: "MPI.Intracomm", destination: int, *, payload_bytes: int, allocator: Allocator) -> None:
        self._comm = comm
        self._destination = destination
        self._payload_bytes = payload_bytes
        self._allocator = allocator
        self._idle: list[torch.Tensor] = []
        self._busy: list[tuple[torch.Tensor, Sent]] = []
        self.requests: list[MPI.Request] = []

    def send(self, tensor: torch.Tensor, *, step: int, microbatch: int, chunk: int = 0) -> None:
        """Copy the tensor behind a header and post its send; returns at once.

        Raises
        ------
        ValueError
            The tensor is larger than the receiver's slots.
        """
        from mpi4py import MPI

        header = Header(step, microbatch, chunk, now(), tensor.dtype, tuple(tensor.shape))
        if header.payload_bytes > self._payload_bytes:
            raise ValueError(
                f"micro-batch {microbatch}: a tensor of {header.payload_bytes} bytes (shape {header.shape}, "
                f"{header.dtype}) does not fit the {self._payload_bytes} bytes agreed for this edge"
            )
        buffer = self._idle.pop() if self._idle else self._allocator.buffer(HEADER_BYTES + self._payload_bytes)
        view = _bytes_of(buffer)
        end = HEADER_BYTES + header.payload_bytes
        header.pack_into(view)
        buffer[HEADER_BYTES:end].view(header.dtype).view(header.shape).copy_(tensor)
        self._busy.append((buffer, Sent(header, now())))
        self.requests.append(self._comm.Isend([view[:end], MPI.BYTE], self._destination, _TAG))

    def complete(self, indices: list[int]) -> list[Sent]:
        """Note that the requests at `indices` have completed and return what they sent."""
        finished = [self._busy[index] for index in indices]
        gone = set(indices)
        self._idle += [buffer for buffer, _ in finished]
        self._busy = [entry for index, entry in enumerate(self._busy) if index not in gone]
        self.requests = [request for index, request in enumerate(self.requests) if index not in gone]
        return [sent for _, sent in finished]
