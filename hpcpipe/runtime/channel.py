"""Messages of the pipeline that are received: persistent receives into slots, and what is too large for one.

A slot is given back when its tensors are no longer needed, after its micro-batch's last task there: the slot is the
stash. The caps of sender and receiver bound the slots that can be filled, so messages do not pile up inside MPI.
"""

from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

from hpcpipe.plan import Kind
from hpcpipe.plan.by_step import ByStep
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.counts import counted, padded
from hpcpipe.runtime.header import NOTICE_BYTES, Described, Header, Notice, Short, read
from hpcpipe.runtime.reserve import Reserve
from hpcpipe.runtime.structure import ONE_TENSOR, put_together

_NOTHING = memoryview(b"")


class Copying(Protocol):
    """Copies that a device makes by itself."""

    def done(self) -> bool:
        """Return whether they are made; never blocks."""


class Memory(Protocol):
    """Message buffers where the device wants them, and how tensors get in and out. A buffer's type is its own.

    A message is one piece, header and tensors, wherever it lies. What is copied between the steps of a message's life
    is copied by the device; the last four methods say when a step is over, None where nothing has to be waited for.
    """

    def buffer(self, num_bytes: int) -> Any:
        """Return a buffer of that size."""

    def view(self, buffer: Any) -> Any:
        """Return the bytes of a buffer as MPI reads and writes them: something to slice that mpi4py takes."""

    def head(self, buffer: Any, num_bytes: int = 0) -> memoryview:
        """Return host memory, of at least so many bytes, where the header is written and read."""

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

    def sealed(self, buffer: Any, begin: int, end: int) -> Copying | None:
        """After the last `store`: when the tensors, in these bytes, are where MPI reads them."""

    def addressed(self, buffer: Any, num_bytes: int) -> Copying | None:
        """After a header of so many bytes was written into `head`: when it is where MPI reads it."""

    def opened(self, buffer: Any, num_bytes: int) -> Copying | None:
        """After MPI has written a message: when so many of its bytes, or all if there are fewer, stand in `head`."""

    def landed(self, buffer: Any, begin: int, end: int) -> Copying | None:
        """After that: when what `load` returns of these bytes may be used."""


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


class Landing(NamedTuple):
    """A message that MPI has delivered while the device copies its tensors, or its header, which is not known then."""

    copying: Copying
    header: Header | None
    buffer: Any
    slot: int
    posted: int


Taken = Arrival | Apart | Landing
"""What has become of a message: it can be used, it comes apart from its slot, or it is being copied."""


class ReceiveChannel:
    """Slots with a persistent receive each, all posted before they are needed, for one kind of task of one chunk.

    The tag is the chunk, so that messages for one chunk never take the slots of another. Which slot a message takes is
    MPI's choice and nobody else's concern, so slots can be withdrawn and posted anew between any two messages: what
    comes meanwhile takes another one, or waits inside MPI in its turn.
    """

    def __init__(
        self, comm: MPI.Intracomm, source: int, *, chunk: int, slots: int, message_bytes: ByStep[int], memory: Memory
    ) -> None:
        self._comm = comm
        self._source = source
        self._memory = memory
        self._chunk = chunk
        self._reserve = Reserve(message_bytes)
        self._slots = ByStep(slots)
        self._count, self._size = slots, message_bytes.at(0)
        # A completed persistent request tests as complete for ever, so the channel itself knows which are under way.
        self._active: list[bool] = []
        self._posted: list[int] = []
        self._sizes: list[int] = []
        self._buffers: list[Any] = []
        self._heads: list[memoryview] = []
        self.requests: list[MPI.Prequest] = []
        """One a slot; of a slot that is no longer used it is none, which tests as nothing."""
        self._grow()

    @property
    def num_posted(self) -> int:
        """How many receives wait for a message."""
        return sum(self._active)

    def plan(self, step: int, slots: int) -> None:
        """Have another number of slots from a step on, which is not the next one to begin but one after it."""
        self._slots.change(step, slots)

    def release(self, slot: int) -> None:
        """Give the slot back: post its receive again, larger or smaller if other messages may come now.

        Where there are more slots than may be needed, it is not used again.
        """
        assert not self._active[slot], f"slot {slot} was given back twice"
        if slot >= self._count:
            self._retire(slot)
            return
        if self._sizes[slot] != self._size:
            self._retire(slot)
            self._make(slot)
        self._active[slot] = True
        self._posted[slot] = now()
        self.requests[slot].Start()

    def begin(self, step: int) -> list[int]:
        """Make as many slots, and each as large, as the messages need that may come in this step and the next.

        Returns the slots that turned out to be filled while this was done: `take` them, MPI will not report them.
        `requests` may have another length then.
        """
        size = max(self._reserve.at(step), self._reserve.at(step + 1))
        count = max(self._slots.at(step), self._slots.at(step + 1))
        if (size, count) == (self._size, self._count):
            self._shrink()
            return []
        self._size, self._count = size, count
        filled = []
        for slot, active in enumerate(self._active):
            if active and (self._sizes[slot] != size or slot >= count):
                if _cancelled(self.requests[slot]):
                    self._active[slot] = False
                    self.release(slot)
                else:
                    filled.append(slot)
            elif not self._sizes[slot] and slot < count:  # it was given up before
                self.release(slot)
        self._shrink()
        self._grow()
        return filled

    def take(self, slot: int) -> Taken:
        """Return what arrived in a slot whose request has completed, or what it announced and is received now."""
        assert self._active[slot], f"slot {slot} completed while no receive was posted"
        self._active[slot] = False
        return self._open(self._buffers[slot], self._heads[slot], slot, self._posted[slot])

    def open(self, apart: Apart) -> Taken:
        """Return what has come apart from its slot."""
        return self._open(apart.buffer, self._memory.head(apart.buffer), apart.slot, apart.posted)

    def go_on(self, landing: Landing) -> Taken:
        """Return what has become of a message whose copies are made."""
        _, header, buffer, slot, posted = landing
        if header is None:
            return self._read(buffer, self._memory.head(buffer), slot, posted)
        return self._arrival(header, buffer, slot, posted)

    def free(self) -> None:
        """Cancel the posted receives and free the requests."""
        for slot, request in enumerate(self.requests):
            if self._active[slot]:
                request.Cancel()
                request.Wait()
            if self._sizes[slot]:
                request.Free()

    def _open(self, buffer: Any, head: memoryview, slot: int, posted: int) -> Taken:
        copying = self._memory.opened(buffer, NOTICE_BYTES)
        return (
            self._read(buffer, head, slot, posted) if copying is None else Landing(copying, None, buffer, slot, posted)
        )

    def _read(self, buffer: Any, head: memoryview, slot: int, posted: int) -> Taken:
        header = read(head)
        if isinstance(header, Short):
            copying = self._memory.opened(buffer, header.needed)
            assert copying is not None, f"a message is shorter than its header of {header.needed} bytes"
            return Landing(copying, None, buffer, slot, posted)
        assert header.chunk == self._chunk, f"a message for chunk {header.chunk} in a slot of chunk {self._chunk}"
        if isinstance(header, Notice):
            return self._receive_apart(slot, header)
        content = header.content
        copying = self._memory.landed(buffer, content.head_bytes, content.size)
        if copying is not None:
            return Landing(copying, header, buffer, slot, posted)
        return self._arrival(header, buffer, slot, posted)

    def _arrival(self, header: Header, buffer: Any, slot: int, posted: int) -> Arrival:
        content, load = header.content, self._memory.load
        if content.structure == ONE_TENSOR:
            return Arrival(header, load(buffer, content.offsets[0], content.tensors[0]), slot, posted)
        tensors = [load(buffer, at, described) for at, described in zip(content.offsets, content.tensors, strict=True)]
        return Arrival(header, put_together(content.structure, tensors), slot, posted)

    def _receive_apart(self, slot: int, notice: Notice) -> Apart:
        self._reserve.note(notice.step, notice.size)
        buffer = self._memory.buffer(padded(notice.size))
        view = self._memory.view(buffer)
        request = self._comm.Irecv(counted(view, notice.size), self._source, notice.tag)
        return Apart(request, buffer, slot, self._posted[slot], notice.tag)

    def _grow(self) -> None:
        while len(self.requests) < self._count:
            slot = len(self.requests)
            self._active.append(False)
            self._posted.append(0)
            self._sizes.append(0)
            self._buffers.append(None)
            self._heads.append(_NOTHING)
            self.requests.append(MPI.Prequest())
            self.release(slot)

    def _shrink(self) -> None:
        """Forget the last slots as far as they have been given up."""
        while len(self.requests) > self._count and not self._sizes[-1]:
            for column in (self._active, self._posted, self._sizes, self._buffers, self._heads, self.requests):
                column.pop()

    def _make(self, slot: int) -> None:
        buffer = self._memory.buffer(padded(self._size))
        view = self._memory.view(buffer)
        self._sizes[slot], self._buffers[slot], self._heads[slot] = self._size, buffer, self._memory.head(buffer)
        self.requests[slot] = self._comm.Recv_init(counted(view, self._size), self._source, self._chunk)

    def _retire(self, slot: int) -> None:
        """Give up what a slot has; what it held may still be looked at by others."""
        if self._sizes[slot]:
            self.requests[slot].Free()
        self._sizes[slot], self._buffers[slot], self._heads[slot] = 0, None, _NOTHING
        self.requests[slot] = MPI.Prequest()


def _cancelled(request: MPI.Prequest) -> bool:
    """Cancel a posted receive; return False if a message was there before that."""
    status = MPI.Status()
    request.Cancel()
    request.Wait(status)
    return status.Is_cancelled()
