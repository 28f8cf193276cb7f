"""All messages of one rank: what arrived from its neighbours, what was sent, found by one `Testsome` a poll.

It moves values and knows nothing of schedules.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from mpi4py import MPI  # starting a mailbox starts MPI

from hpcpipe.plan import Kind, Task
from hpcpipe.runtime.channel import Arrival, Memory, Neighbour, Outbox, ReceiveChannel, Sent
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.failure import PeerLostError
from hpcpipe.runtime.mesh import Mesh

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
        The largest value that crosses an edge.
    """

    due: int | None = None
    """When the next message that is held back is handed out; this mailbox holds nothing back."""

    def __init__(self, mesh: Mesh, *, inlets: Iterable[Inlet], payload_bytes: int, memory: Memory) -> None:
        self._rank_of = mesh.place.rank_of
        comms = {Kind.F: mesh.forward, Kind.B: mesh.backward}
        self._channels: dict[tuple[Kind, int], ReceiveChannel] = {}
        self._peers: dict[tuple[Kind, int], int] = {}
        self._owners: list[tuple[Neighbour, ReceiveChannel, int]] = []
        self._receive_requests: list[MPI.Request] = []
        for feeds, chunk, stage, slots in inlets:
            channel = ReceiveChannel(
                comms[feeds], stage, chunk=chunk, slots=slots, payload_bytes=payload_bytes, memory=memory
            )
            neighbour = Neighbour(feeds, chunk, self._rank_of(stage))
            self._channels[feeds, chunk] = channel
            self._peers[feeds, chunk] = neighbour.peer
            self._owners += [(neighbour, channel, slot) for slot in range(slots)]
            self._receive_requests += channel.requests
        self._outbox = Outbox(comms, payload_bytes=payload_bytes, memory=memory)

    @property
    def sending(self) -> bool:
        """Whether a send has not completed."""
        return bool(self._outbox.requests)

    def poll(self) -> Mail:
        """Return what has arrived and what has been sent since the last poll; never blocks.

        Raises
        ------
        PeerLostError
            MPI reports that a message cannot be completed.
        """
        requests = self._receive_requests + self._outbox.requests
        try:
            indices = MPI.Request.Testsome(requests) if requests else None
        except MPI.Exception as error:
            peers = ", ".join(f"rank {peer}" for peer in sorted({neighbour.peer for neighbour, *_ in self._owners}))
            raise PeerLostError(f"messages with {peers} failed; most likely one of them has died") from error
        if not indices:
            return [], []
        receives = len(self._owners)
        arrivals = []
        completed = []
        for index in indices:
            if index < receives:
                neighbour, channel, slot = self._owners[index]
                arrivals.append((neighbour, channel.take(slot)))
            else:
                completed.append(index - receives)
        return arrivals, self._outbox.complete(completed) if completed else []

    def send(self, stage: int, feeds: Task, value: Any, *, step: int) -> None:
        """Post a send to the stage whose task the value feeds."""
        neighbour = Neighbour(feeds.kind, feeds.chunk, self._rank_of(stage))
        self._outbox.send(neighbour, stage, value, step=step, microbatch=feeds.microbatch)

    def release(self, feeds: Task, slot: int) -> None:
        """Give a slot back: what it holds is no longer needed."""
        self._channels[feeds.kind, feeds.chunk].release(slot)

    def pending(self) -> dict[str, Any]:
        """Return the receives and sends under way, for another thread; tags are chunks."""
        time = now()
        return {
            "receives": [
                {"feeds": feeds.name, "chunk": chunk, "tag": chunk, "peer": peer, "slots": slots, "posted": posted}
                for (feeds, chunk), peer, slots, posted in (
                    (key, self._peers[key], len(channel.requests), channel.num_posted)
                    for key, channel in self._channels.items()
                )
            ],
            "sends": [
                {
                    "feeds": neighbour.feeds.name,
                    "step": sent.header.step,
                    "microbatch": sent.header.microbatch,
                    "tag": neighbour.chunk,
                    "peer": neighbour.peer,
                    "bytes": sent.header.payload_bytes,
                    "for_s": (time - sent.posted) * 1e-9,
                }
                for neighbour, sent in self._outbox.under_way()
            ],
        }

    def free(self) -> None:
        """Cancel what is posted and free all requests."""
        for channel in self._channels.values():
            channel.free()
