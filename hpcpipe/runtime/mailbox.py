"""All messages of one rank: what arrived from its neighbours, what was sent, found by one `Testsome` a poll.

It moves values and knows nothing of schedules.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mpi4py import MPI  # starting a mailbox starts MPI

from hpcpipe.plan import Kind, Task
from hpcpipe.plan.by_step import ByStep
from hpcpipe.runtime.channel import Apart, Arrival, Landing, Memory, Neighbour, ReceiveChannel, Taken
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.failure import PeerLostError
from hpcpipe.runtime.header import ROOM_FOR_ONE
from hpcpipe.runtime.mesh import Mesh
from hpcpipe.runtime.outbox import Outbox, Sent

Mail = tuple[list[tuple[Neighbour, Arrival]], list[tuple[Neighbour, Sent]]]
"""What has arrived and what has been sent."""


class Inlet(NamedTuple):
    """Where the messages for one kind of task of one chunk come from, and the slots that await them.

    There are enough slots when they hold all that the sender may send and the receiver keep at a time; then no message
    waits for another.
    """

    feeds: Kind
    chunk: int
    stage: int
    slots: int


class Mailbox:
    """The channels of one stage.

    Activations and gradients have communicators of their own, and every chunk has its own tag and slots: with two
    stages or a ring the same rank is at both ends of several edges, and nothing may swap or block (compare
    Megatron-LM 5271 and pytorch 188833).

    Parameters
    ----------
    inlets
        One for every kind and chunk that is fed from another stage.
    payload_bytes
        The largest tensor that is known to cross an edge; 0 where nobody knows. What is larger comes apart from its
        slot at first and fits from the second step after on (reserve.py).
    """

    due: int | None = None
    """When the next message that is held back is handed out; this mailbox holds nothing back."""

    def __init__(self, mesh: Mesh, *, inlets: Iterable[Inlet], payload_bytes: int, memory: Memory) -> None:
        self._rank_of = mesh.place.rank_of
        comms = {Kind.F: mesh.forward, Kind.B: mesh.backward}
        size = self._message_bytes = ByStep(ROOM_FOR_ONE + payload_bytes)
        self._channels: dict[tuple[Kind, int], tuple[Neighbour, ReceiveChannel, int]] = {}
        self._owners: list[tuple[Neighbour, ReceiveChannel, int]] = []
        self._receive_requests: list[MPI.Request] = []
        self._apart: list[tuple[Neighbour, ReceiveChannel, Apart]] = []
        self._landing: list[tuple[Neighbour, ReceiveChannel, Landing]] = []
        self._arrived: list[tuple[Neighbour, Arrival]] = []
        for feeds, chunk, stage, slots in inlets:
            channel = ReceiveChannel(comms[feeds], stage, chunk=chunk, slots=slots, message_bytes=size, memory=memory)
            self._channels[feeds, chunk] = Neighbour(feeds, chunk, self._rank_of(stage)), channel, 0
        self._number()
        self._outbox = Outbox(comms, message_bytes=size, memory=memory)

    @property
    def sending(self) -> bool:
        """Whether a send has not completed."""
        return self._outbox.sending

    def begin(self, step: int) -> None:
        """Make room for the messages of a step; the step before is done."""
        for neighbour, channel, _ in self._channels.values():
            for slot in channel.begin(step):
                self._take(neighbour, channel, slot)
        self._number()
        self._outbox.begin(step)

    def plan(self, step: int, inlets: Iterable[Inlet], *, payload_bytes: int) -> None:
        """Have other messages and slots from a step on, on the same edges; all ranks do so between the same two steps.

        It is called before the step before that one begins: no message of the step can be under way yet (reserve.py).
        """
        size = ROOM_FOR_ONE + payload_bytes
        if size != self._message_bytes.at(step):
            self._message_bytes.change(step, size)
        for feeds, chunk, _, slots in inlets:
            self._channels[feeds, chunk][1].plan(step, slots)

    def poll(self) -> Mail:
        """Return what has arrived and what has been sent since the last poll; never blocks.

        Raises
        ------
        PeerLostError
            MPI reports that a message cannot be completed.
        """
        self._outbox.leave()
        requests = self._receive_requests + self._outbox.requests
        if self._apart:
            requests += [apart.request for _, _, apart in self._apart]
        try:
            indices = MPI.Request.Testsome(requests) if requests else None
        except MPI.Exception as error:
            peers = ", ".join(f"rank {peer}" for peer in sorted({neighbour.peer for neighbour, *_ in self._owners}))
            raise PeerLostError(f"messages with {peers} failed; most likely one of them has died") from error
        if not indices and not self._landing and not self._arrived:
            return [], []
        receives, sends = len(self._owners), len(self._outbox.requests)
        completed, came_apart = [], []
        for index in indices or ():
            if index < receives:
                self._take(*self._owners[index])
            elif index < receives + sends:
                completed.append(index - receives)
            else:
                came_apart.append(index - receives - sends)
        if came_apart:
            self._open(came_apart)
        if self._landing:
            self._land()
        arrived, self._arrived = self._arrived, []
        return arrived, self._outbox.complete(completed) if completed else []

    def send(self, stage: int, feeds: Task, value: Any, *, step: int) -> None:
        """Post a send to the stage whose task the value feeds."""
        neighbour = Neighbour(feeds.kind, feeds.chunk, self._rank_of(stage))
        self._outbox.send(neighbour, stage, value, step=step, microbatch=feeds.microbatch)

    def release(self, feeds: Task, slot: int) -> None:
        """Give a slot back: what it holds is no longer needed."""
        _, channel, first = self._channels[feeds.kind, feeds.chunk]
        channel.release(slot)
        self._receive_requests[first + slot] = channel.requests[slot]

    def pending(self) -> dict[str, Any]:
        """Return the receives and sends under way, for another thread."""
        time = now()
        posted = [(neighbour, neighbour.chunk, channel.num_posted) for neighbour, channel, _ in self._channels.values()]
        posted += [(neighbour, apart.tag, 1) for neighbour, _, apart in list(self._apart)]
        return {
            "receives": [
                {
                    "feeds": neighbour.feeds.name,
                    "chunk": neighbour.chunk,
                    "tag": tag,
                    "peer": neighbour.peer,
                    "slots": len(self._channels[neighbour.feeds, neighbour.chunk][1].requests),
                    "posted": count,
                }
                for neighbour, tag, count in posted
            ],
            "sends": [
                {
                    "feeds": neighbour.feeds.name,
                    "step": sent.header.step,
                    "microbatch": sent.header.microbatch,
                    "tag": sent.tag,
                    "peer": neighbour.peer,
                    "bytes": sent.header.payload_bytes,
                    "for_s": (time - sent.posted) * 1e-9,
                }
                for neighbour, sent in self._outbox.under_way()
            ],
        }

    def free(self) -> None:
        """Cancel what is posted and free all requests, when the device no longer writes to a message."""
        while self._landing:
            self._land()
        for _, channel, _ in self._channels.values():
            channel.free()

    def _number(self) -> None:
        """Give all slots the numbers by which MPI tells which have been filled."""
        self._owners, self._receive_requests = [], []
        for key, (neighbour, channel, _) in self._channels.items():
            self._channels[key] = neighbour, channel, len(self._owners)
            self._owners += [(neighbour, channel, slot) for slot in range(len(channel.requests))]
            self._receive_requests += channel.requests

    def _take(self, neighbour: Neighbour, channel: ReceiveChannel, slot: int) -> None:
        self._sort(neighbour, channel, channel.take(slot))

    def _sort(self, neighbour: Neighbour, channel: ReceiveChannel, taken: Taken) -> None:
        if isinstance(taken, Arrival):
            self._arrived.append((neighbour, taken))
        elif isinstance(taken, Apart):
            self._apart.append((neighbour, channel, taken))
        else:
            self._landing.append((neighbour, channel, taken))

    def _open(self, indices: list[int]) -> None:
        opened = [self._apart[index] for index in indices]
        self._apart = [entry for index, entry in enumerate(self._apart) if index not in indices]
        for neighbour, channel, apart in opened:
            self._sort(neighbour, channel, channel.open(apart))

    def _land(self) -> None:
        """Go on with the messages whose copies are made."""
        waiting, self._landing = self._landing, []
        for neighbour, channel, landing in waiting:
            if landing.copying.done():
                self._sort(neighbour, channel, channel.go_on(landing))
            else:
                self._landing.append((neighbour, channel, landing))
