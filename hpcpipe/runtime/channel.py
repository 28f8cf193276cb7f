"""Messages of the pipeline that are received: persistent receives into slots, and what is too large for one.

A slot is given back when its tensors are no longer needed, after its micro-batch's last task there: the slot is the
stash. The caps of sender and receiver bound the slots that can be filled, so messages do not pile up inside MPI.
"""

from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

from hpcpipe.plan import Kind
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.counts import counted, padded
from hpcpipe.runtime.header import Described, Header, Notice, read
from hpcpipe.runtime.reserve import Reserve
from hpcpipe.runtime.structure import ONE_TENSOR, put_together


class Memory(Protocol):
    """Message buffers where the device wants them, and how tensors get in and out. A buffer's type is its own."""

    def buffer(self, num_bytes: int) -> Any:
        """Return a buffer of that size."""

    def view(self, buffer: Any) -> memoryview:
        """Return the bytes of a buffer as MPI reads and writes them."""

    def describe(self, tensor: Any) -> tuple[str, tuple[int, ...], bool, tuple[int, ...]]:
        """Return the name of a tensor's type, its shape, whether it wants a gradient, its layout (see Described).

        Raises
        ------
        ValueError
            It is no tensor, or of a kind that is not sent.
        """

    def store(self, tensor: Any, buffer: Any, at: int) -> None:
        """Copy a tensor into a buffer from byte `at` on."""

    def load(self, buffer: Any, at: int, described: Described) -> Any:
        """Return the tensor that a buffer holds from byte `at` on, without a copy."""


class Neighbour(NamedTuple):
    """The world rank at the other end of a message, and the tasks that it feeds: `Kind.F` or `Kind.B` of a chunk."""

    feeds: Kind
    chunk: int
    peer: int


class Arrival(NamedTuple):
    """What was received (views of its slot), its header, and when its receive had been posted (ns)."""

    header: Header
    value: Any
    slot: int
    posted: int


class Apart(NamedTuple):
    """A message that does not come in the slot that announced it, while it is under way."""

    request: MPI.Request
    buffer: Any
    slot: int
    posted: int
    tag: int


class ReceiveChannel:
    """Slots with a persistent receive each, all posted before they are needed, for one kind of task of one chunk.

    The tag is the chunk, so that messages for one chunk never take the slots of another.
    """

    def __init__(
        self, comm: MPI.Intracomm, source: int, *, chunk: int, slots: int, message_bytes: int, memory: Memory
    ) -> None:
        self._comm = comm
        self._source = source
        self._memory = memory
        self._chunk = chunk
        self._reserve = Reserve(message_bytes)
        self._sizes = [message_bytes] * slots
        made = [self._make(message_bytes) for _ in range(slots)]
        self._buffers = [buffer for buffer, _, _ in made]
        self._views = [view for _, view, _ in made]
        self.requests = [request for _, _, request in made]
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
        """Give the slot back: post its receive again, larger if larger messages may come now."""
        assert not self._active[slot], f"slot {slot} was given back twice"
        if self._sizes[slot] < self._reserve.size:
            self._enlarge(slot)
        self._active[slot] = True
        self._posted[slot] = now()
        self.requests[slot].Start()

    def begin(self, step: int) -> list[int]:
        """Make the slots large enough for the messages that may come in this step and the next.

        Returns the slots that turned out to be filled while this was done: `take` them, MPI will not report them.
        """
        before = self._reserve.size
        if self._reserve.at(step + 1) == before:
            return []
        filled = []
        for slot, active in enumerate(self._active):
            if not active:
                continue  # it holds a message, and grows when it is given back
            if _cancelled(self.requests[slot]):
                self._active[slot] = False
                self.release(slot)
            else:
                filled.append(slot)
        return filled

    def take(self, slot: int) -> Arrival | Apart:
        """Return what arrived in a slot whose request has completed, or what it announced and is received now."""
        assert self._active[slot], f"slot {slot} completed while no receive was posted"
        self._active[slot] = False
        header = read(self._views[slot])
        assert header.chunk == self._chunk, f"a message for chunk {header.chunk} in a slot of chunk {self._chunk}"
        if isinstance(header, Notice):
            return self._receive_apart(slot, header)
        return self._arrival(header, self._buffers[slot], slot)

    def open(self, apart: Apart) -> Arrival:
        """Return what has come apart from its slot."""
        header = read(self._memory.view(apart.buffer))
        assert isinstance(header, Header)
        return self._arrival(header, apart.buffer, apart.slot)

    def free(self) -> None:
        """Cancel the posted receives and free the requests."""
        for slot, request in enumerate(self.requests):
            if self._active[slot]:
                request.Cancel()
                request.Wait()
            request.Free()

    def _arrival(self, header: Header, buffer: Any, slot: int) -> Arrival:
        content, load = header.content, self._memory.load
        if content.structure == ONE_TENSOR:
            return Arrival(header, load(buffer, content.offsets[0], content.tensors[0]), slot, self._posted[slot])
        tensors = [load(buffer, at, described) for at, described in zip(content.offsets, content.tensors, strict=True)]
        return Arrival(header, put_together(content.structure, tensors), slot, self._posted[slot])

    def _receive_apart(self, slot: int, notice: Notice) -> Apart:
        self._reserve.note(notice.step, notice.size)
        buffer = self._memory.buffer(padded(notice.size))
        view = self._memory.view(buffer)
        request = self._comm.Irecv(counted(view, notice.size), self._source, notice.tag)
        return Apart(request, buffer, slot, self._posted[slot], notice.tag)

    def _enlarge(self, slot: int) -> None:
        self.requests[slot].Free()
        self._sizes[slot] = self._reserve.size
        self._buffers[slot], self._views[slot], self.requests[slot] = self._make(self._reserve.size)

    def _make(self, size: int) -> tuple[Any, memoryview, MPI.Prequest]:
        buffer = self._memory.buffer(padded(size))
        view = self._memory.view(buffer)
        return buffer, view, self._comm.Recv_init(counted(view, size), self._source, self._chunk)


def _cancelled(request: MPI.Prequest) -> bool:
    """Cancel a posted receive; return False if a message was there before that."""
    status = MPI.Status()
    request.Cancel()
    request.Wait(status)
    return status.Is_cancelled()
