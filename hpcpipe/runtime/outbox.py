"""Messages of the pipeline that are sent: nonblocking sends from pooled buffers.

It knows neither who waits for a message nor what its tensors mean.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

from hpcpipe.plan import Kind
from hpcpipe.plan.by_step import ByStep
from hpcpipe.runtime.channel import Copying, Memory, Neighbour
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.counts import counted, padded
from hpcpipe.runtime.header import NOTICE_BYTES, Content, Header
from hpcpipe.runtime.reserve import Reserve
from hpcpipe.runtime.structure import take_apart

FIRST_TAG_APART, TAGS_APART = 16_384, 16_384
"""The tags of messages that come apart from their slots; those below are chunks. 32,767 is all that MPI promises."""


class Sent(NamedTuple):
    """A send that was posted; times in ns."""

    header: Header
    posted: int
    tag: int


class _Buffer(NamedTuple):
    memory: Any
    view: Any


class _Leaving(NamedTuple):
    """A message that MPI may not read yet, and what is done with it then; the tensors stay until they are copied."""

    copying: Copying
    then: Callable[[], None]
    neighbour: Neighbour
    sent: Sent | None
    tensors: Sequence[Any] = ()


class Outbox:
    """Nonblocking sends to all neighbours; a buffer is reused when its request has completed.

    A message whose tensors a device still copies, or computes, waits: `leave` posts it when they are there.

    `comms` are the communicators by what their messages feed.
    """

    def __init__(self, comms: Mapping[Kind, MPI.Intracomm], *, message_bytes: ByStep[int], memory: Memory) -> None:
        self._comms = comms
        self._message_bytes = message_bytes
        self._memory = memory
        self._reserves: dict[Neighbour, Reserve] = {}
        self._idle: dict[int, list[_Buffer]] = {message_bytes.at(0): []}
        self._busy: list[tuple[_Buffer, int, Neighbour, Sent | None]] = []
        self._sent_apart = 0
        self._leaving: list[_Leaving] = []
        self.requests: list[MPI.Request] = []

    def begin(self, step: int) -> None:
        """Forget the buffers of sizes that no edge has any more."""
        sizes = {reserve.at(step) for reserve in self._reserves.values()}
        if sizes and not self._idle.keys() <= sizes:
            self._idle = {size: idle for size, idle in self._idle.items() if size in sizes}

    def send(self, neighbour: Neighbour, stage: int, value: Any, *, step: int, microbatch: int) -> None:
        """Copy the value behind a header and post its send to a stage; returns at once.

        Raises
        ------
        ValueError
            The value holds what cannot be described.
        """
        try:
            structure, tensors = take_apart(value)
            content = Content.of(structure, map(self._memory.describe, tensors))
        except ValueError as error:
            what = "output" if neighbour.feeds is Kind.F else "input gradient"
            raise ValueError(f"the {what} of micro-batch {microbatch} cannot go to stage {stage}: {error}") from None
        header = Header(step, microbatch, neighbour.chunk, now(), content)
        reserve = self._reserves.get(neighbour)
        if reserve is None:
            reserve = self._reserves[neighbour] = Reserve(self._message_bytes)
        room = reserve.at(step)
        if content.size <= room:
            buffer, tag = self._take(room), neighbour.chunk
        else:
            reserve.note(step, content.size)
            tag = self._announce(neighbour, stage, header)
            room, buffer = 0, self._new(content.size)
        for tensor, at in zip(tensors, content.offsets, strict=True):
            self._memory.store(tensor, buffer.memory, at)
        copying = self._memory.sealed(buffer.memory, content.head_bytes, content.size)
        if copying is None:
            self._address(buffer, room, neighbour, stage, tag, header)
        else:
            then = partial(self._address_now, buffer, room, neighbour, stage, tag, header)
            self._leaving.append(_Leaving(copying, then, neighbour, Sent(header, header.sent, tag), tensors))

    @property
    def sending(self) -> bool:
        """Whether a send has not completed."""
        return bool(self.requests or self._leaving)

    def leave(self) -> None:
        """Post what was being copied and is there now; never blocks."""
        if not self._leaving:
            return
        waiting, self._leaving = self._leaving, []
        for each in waiting:
            if each.copying.done():
                each.then()
            else:
                self._leaving.append(each)

    def under_way(self) -> list[tuple[Neighbour, Sent]]:
        """Return the sends that have not completed."""
        posted = [(neighbour, sent) for _, _, neighbour, sent in list(self._busy) if sent is not None]
        return posted + [(each.neighbour, each.sent) for each in list(self._leaving) if each.sent is not None]

    def complete(self, indices: list[int]) -> list[tuple[Neighbour, Sent]]:
        """Note that the requests at `indices` have completed and return what they sent."""
        gone = set(indices)
        finished = []
        for index in indices:
            buffer, room, neighbour, sent = self._busy[index]
            if room in self._idle:
                self._idle[room].append(buffer)
            if sent is not None:
                finished.append((neighbour, sent))
        self._busy = [entry for index, entry in enumerate(self._busy) if index not in gone]
        self.requests = [request for index, request in enumerate(self.requests) if index not in gone]
        return finished

    def _take(self, room: int) -> _Buffer:
        idle = self._idle.get(room)
        if idle is None:  # an edge has other messages than before
            idle = self._idle[room] = []
        return idle.pop() if idle else self._new(room)

    def _new(self, num_bytes: int) -> _Buffer:
        memory = self._memory.buffer(padded(num_bytes))
        return _Buffer(memory, self._memory.view(memory))

    def _announce(self, neighbour: Neighbour, stage: int, header: Header) -> int:
        """Send into the slot that a message comes apart from it; return the tag that it comes with."""
        tag = FIRST_TAG_APART + self._sent_apart % TAGS_APART
        self._sent_apart += 1
        notice = self._new(NOTICE_BYTES)
        header.pack_notice(self._memory.head(notice.memory), tag)
        copying = self._memory.addressed(notice.memory, NOTICE_BYTES)
        post = partial(self._post, notice, 0, NOTICE_BYTES, neighbour, stage, neighbour.chunk, None)
        if copying is None:
            post()
        else:
            self._leaving.append(_Leaving(copying, post, neighbour, None))
        return tag

    def _address(self, buffer: _Buffer, room: int, neighbour: Neighbour, stage: int, tag: int, header: Header) -> None:
        """Write the header of a message whose tensors are where MPI reads them, and post it when that is there too."""
        content = header.content
        header.pack_into(self._memory.head(buffer.memory, content.head_bytes))
        copying = self._memory.addressed(buffer.memory, content.head_bytes)
        if copying is None:
            self._post(buffer, room, content.size, neighbour, stage, tag, header)
        else:
            post = partial(self._post, buffer, room, content.size, neighbour, stage, tag, header)
            self._leaving.append(_Leaving(copying, post, neighbour, Sent(header, header.sent, tag)))

    def _address_now(
        self, buffer: _Buffer, room: int, neighbour: Neighbour, stage: int, tag: int, header: Header
    ) -> None:
        """Address a message that has waited for its tensors: it is under way from here on."""
        self._address(buffer, room, neighbour, stage, tag, header._replace(sent=now()))

    def _post(
        self, buffer: _Buffer, room: int, size: int, neighbour: Neighbour, stage: int, tag: int, header: Header | None
    ) -> None:
        sent = None if header is None else Sent(header, now(), tag)
        self._busy.append((buffer, room, neighbour, sent))
        self.requests.append(self._comms[neighbour.feeds].Isend(counted(buffer.view, size), stage, tag))
