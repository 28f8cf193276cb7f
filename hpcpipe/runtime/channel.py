"""Messages of the pipeline: persistent receives into slots, and nonblocking sends from pooled buffers.

A slot is given back when its tensor is no longer needed, after its micro-batch's last task there: the slot is the
stash. The caps of sender and receiver bound the slots that can be filled, so messages do not pile up inside MPI.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hpcpipe.plan import Kind
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.header import HEADER_BYTES, Header

if TYPE_CHECKING:
    from mpi4py import MPI


class Memory(Protocol):
    """Message buffers where the device wants them, and how its values get in and out. A buffer's type is its own."""

    def buffer(self, num_bytes: int) -> Any:
        """Return a buffer of that size."""

    def view(self, buffer: Any) -> memoryview:
        """Return the bytes of a buffer as MPI reads and writes them."""

    def describe(self, value: Any) -> tuple[str, tuple[int, ...]]:
        """Return the name of a value's type and its shape."""

    def store(self, value: Any, buffer: Any, at: int) -> None:
        """Copy a value into a buffer from byte `at` on."""

    def load(self, buffer: Any, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return what a buffer holds from byte `at` on, without a copy."""


class Neighbour(NamedTuple):
    """The world rank at the other end of a message, and the tasks that it feeds: `Kind.F` or `Kind.B` of a chunk."""

    feeds: Kind
    chunk: int
    peer: int


class Arrival(NamedTuple):
    """What was received (a view of its slot), its header, and when its receive had been posted (ns)."""

    header: Header
    value: Any
    slot: int
    posted: int


class Sent(NamedTuple):
    """A send that MPI has completed; times in ns."""

    header: Header
    posted: int


class ReceiveChannel:
    """Slots with a persistent receive each, all posted before they are needed, for one kind of task of one chunk.

    The tag is the chunk, so that messages for one chunk never take the slots of another.
    """

    def __init__(
        self, comm: "MPI.Intracomm", source: int, *, chunk: int, slots: int, payload_bytes: int, memory: Memory
    ) -> None:
        from mpi4py import MPI

        self._memory = memory
        self._chunk = chunk
        self._buffers = [memory.buffer(HEADER_BYTES + payload_bytes) for _ in range(slots)]
        self._views = [memory.view(buffer) for buffer in self._buffers]
        self.requests = [comm.Recv_init([view, MPI.BYTE], source, chunk) for view in self._views]
        # A completed persistent request tests as complete for ever, so the channel itself knows which are under way.
        self._active = [False] * slots
        self._posted = [0] * slots
        for slot in range(slots):
            self.release(slot)

    @property
    def num_posted(self) -> int:
        """How many receives wait for a message."""
        return sum(self._active)

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
        assert header.chunk == self._chunk, f"a message for chunk {header.chunk} in a slot of chunk {self._chunk}"
        value = self._memory.load(self._buffers[slot], HEADER_BYTES, header.dtype, header.shape)
        return Arrival(header, value, slot, self._posted[slot])

    def free(self) -> None:
        """Cancel the posted receives and free the requests."""
        for slot, request in enumerate(self.requests):
            if self._active[slot]:
                request.Cancel()
                request.Wait()
            request.Free()


class Outbox:
    """Nonblocking sends to all neighbours; a buffer is reused when its request has completed.

    `comms` are the communicators by what their messages feed.
    """

    def __init__(self, comms: "Mapping[Kind, MPI.Intracomm]", *, payload_bytes: int, memory: Memory) -> None:
        from mpi4py import MPI

        self._comms = comms
        self._byte = MPI.BYTE
        self._payload_bytes = payload_bytes
        self._memory = memory
        self._idle: list[Any] = []
        self._busy: list[tuple[Any, Neighbour, Sent]] = []
        self.requests: list[MPI.Request] = []

    def send(self, neighbour: Neighbour, stage: int, value: Any, *, step: int, microbatch: int) -> None:
        """Copy the value behind a header and post its send to a stage; returns at once.

        Raises
        ------
        ValueError
            The value is larger than the receiver's slots, or of a type or shape that cannot be described.
        """
        dtype, shape = self._memory.describe(value)
        header = Header(step, microbatch, neighbour.chunk, now(), dtype, shape)
        header.check()
        num_bytes = header.payload_bytes
        if num_bytes > self._payload_bytes:
            raise ValueError(
                f"micro-batch {microbatch}: a tensor of {num_bytes} bytes (shape {shape}, {dtype}) does not fit the "
                f"{self._payload_bytes} bytes agreed for this edge"
            )
        buffer = self._idle.pop() if self._idle else self._memory.buffer(HEADER_BYTES + self._payload_bytes)
        view = self._memory.view(buffer)
        header.pack_into(view)
        self._memory.store(value, buffer, HEADER_BYTES)
        self._busy.append((buffer, neighbour, Sent(header, now())))
        comm = self._comms[neighbour.feeds]
        self.requests.append(comm.Isend([view[: HEADER_BYTES + num_bytes], self._byte], stage, neighbour.chunk))

    def under_way(self) -> list[tuple[Neighbour, Sent]]:
        """Return the sends that have not completed."""
        return [(neighbour, sent) for _, neighbour, sent in self._busy]

    def complete(self, indices: list[int]) -> list[tuple[Neighbour, Sent]]:
        """Note that the requests at `indices` have completed and return what they sent."""
        finished = [self._busy[index] for index in indices]
        gone = set(indices)
        self._idle += [buffer for buffer, _, _ in finished]
        self._busy = [entry for index, entry in enumerate(self._busy) if index not in gone]
        self.requests = [request for index, request in enumerate(self.requests) if index not in gone]
        return [(neighbour, sent) for _, neighbour, sent in finished]
