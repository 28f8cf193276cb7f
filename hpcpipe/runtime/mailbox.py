"""All messages of one rank: what arrived from both neighbours, what was sent, found by one `Testsome` a poll.

It moves tensors and knows nothing of schedules.
"""

from typing import NamedTuple

import torch
from mpi4py import MPI  # starting a mailbox starts MPI

from hpcpipe.plan import Kind
from hpcpipe.runtime.channel import Allocator, Arrival, ReceiveChannel, SendChannel, Sent
from hpcpipe.runtime.failure import PeerLostError
from hpcpipe.runtime.mesh import Mesh


class Neighbour(NamedTuple):
    """A channel, the world rank at its other end, and what its messages feed: `Kind.F` or `Kind.B`."""

    feeds: Kind
    peer: int


class Mailbox:
    """The channels of one stage.

    Parameters
    ----------
    forward_slots, backward_slots
        Receive slots for activations and for gradients: the in-flight bound of the stage that sends them.
    payload_bytes
        The largest tensor that crosses either edge.
    """

    def __init__(
        self, mesh: Mesh, *, forward_slots: int, backward_slots: int, payload_bytes: int, allocator: Allocator
    ) -> None:
        place = mesh.place
        self._receives: list[tuple[Neighbour, ReceiveChannel]] = []
        self._sends: dict[Kind, tuple[Neighbour, SendChannel]] = {}
        edges = [] if place.first else [(place.stage - 1, Kind.F, Kind.B, mesh.forward, mesh.backward, forward_slots)]
        edges += [] if place.last else [(place.stage + 1, Kind.B, Kind.F, mesh.backward, mesh.forward, backward_slots)]
        for stage, arriving, leaving, receive_comm, send_comm, slots in edges:
            peer = place.rank_of(stage)
            receive = ReceiveChannel(receive_comm, stage, slots=slots, payload_bytes=payload_bytes, allocator=allocator)
            send = SendChannel(send_comm, stage, payload_bytes=payload_bytes, allocator=allocator)
            self._receives.append((Neighbour(arriving, peer), receive))
            self._sends[leaving] = (Neighbour(leaving, peer), send)
        self._receive_requests = [request for _, channel in self._receives for request in channel.requests]
        self._owner = [(pair, slot) for pair in self._receives for slot in range(len(pair[1].requests))]

    @property
    def sending(self) -> bool:
        """Whether a send has not completed."""
        return any(channel.requests for _, channel in self._sends.values())

    def poll(self) -> tuple[list[tuple[Neighbour, Arrival]], list[tuple[Neighbour, Sent]]]:
        """Return what has arrived and what has been sent since the last poll; never blocks.

        Raises
        ------
        PeerLostError
            MPI reports that a message cannot be completed.
        """
        sends = [(pair, index) for pair in self._sends.values() for index in range(len(pair[1].requests))]
        requests = self._receive_requests + [pair[1].requests[index] for pair, index in sends]
        try:
            indices = MPI.Request.Testsome(requests) if requests else None
        except MPI.Exception as error:
            peers = ", ".join(f"rank {neighbour.peer}" for neighbour, _ in self._receives)
            raise PeerLostError(f"messages with {peers} failed; most likely one of them has died") from error
        if not indices:
            return [], []
        num_receives = len(self._receive_requests)
        arrivals = [
            (neighbour, channel.take(slot))
            for (neighbour, channel), slot in (self._owner[i] for i in indices if i < num_receives)
        ]
        completed: dict[Kind, list[int]] = {}
        for (neighbour, _), index in (sends[i - num_receives] for i in indices if i >= num_receives):
            completed.setdefault(neighbour.feeds, []).append(index)
        sent = []
        for feeds, positions in completed.items():
            neighbour, channel = self._sends[feeds]
            sent += [(neighbour, entry) for entry in channel.complete(positions)]
        return arrivals, sent

    def send(self, feeds: Kind, tensor: torch.Tensor, *, step: int, microbatch: int, chunk: int = 0) -> None:
        """Post a send to the neighbour whose F or B the tensor feeds."""
        self._sends[feeds][1].send(tensor, step=step, microbatch=microbatch, chunk=chunk)

    def release(self, feeds: Kind, slot: int) -> None:
        """Give a slot back: its tensor is no longer needed."""
        next(channel for neighbour, channel in self._receives if neighbour.feeds is feeds).release(slot)

    def free(self) -> None:
        """Cancel what is posted and free all requests."""
        for _, channel in self._receives:
            channel.free()
