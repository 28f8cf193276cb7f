"""What one rank sends, receives and adds in a collective on a GPU, as data: the lists of native/program.cpp.

So sums have the same order, and in fp32 the same bits, as those of the native module. It knows neither MPI nor GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

DeviceAlgorithm = Literal["ring", "direct"]

SLOTS = 4
"""Messages of a peer that can be there before the first of them is added."""


class Shape(NamedTuple):
    """A buffer of one block for each rank, in their order, as one of them sees it; lengths in elements."""

    rank: int
    ranks: int
    block: int
    chunk: int


class Place(NamedTuple):
    """A stretch of the buffer or of the scratch memory, in elements."""

    scratch: bool
    begin: int
    length: int


class Request(NamedTuple):
    """A persistent request, started each time a message names it."""

    sends: bool
    peer: int
    at: Place


class Send(NamedTuple):
    """A message that may be started when the first `after` receives have been worked off."""

    request: int
    after: int


class Receive(NamedTuple):
    """A message of `length` elements; when it has come in its turn, `reductions` are made in their order."""

    request: int
    length: int
    after: int
    reductions: "tuple[Reduction, ...]" = ()


class Reduction(NamedTuple):
    """into = (sources[0] + sources[1]) + ..."""

    into: Place
    sources: tuple[Place, ...]


@dataclass(slots=True)
class Program:
    """Requests, and what is done with them; `scratch` is the length of the memory that messages to be added need."""

    shape: Shape
    scratch: int = 0
    requests: list[Request] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    _written: list[tuple[Place, int]] = field(default_factory=list)
    _slot_free: dict[int, int] = field(default_factory=dict)
    _filled: list[int] = field(default_factory=list)

    def chunks(self, block: int) -> Iterator[Place]:
        """Yield the messages that a rank's block travels in."""
        begin, end = block * self.shape.block, (block + 1) * self.shape.block
        for at in range(begin, end, self.shape.chunk):
            yield Place(False, at, min(self.shape.chunk, end - at))

    def slot(self, peer: int) -> int:
        """Return a request that receives into scratch memory of its own."""
        length = min(self.shape.chunk, self.shape.block)
        self.scratch += length
        return self._request(False, peer, Place(True, self.scratch - length, length))

    def send(self, peer: int, at: Place) -> None:
        """Send a stretch, after whatever receive writes there last."""
        after = next((end for place, end in reversed(self._written) if _overlap(place, at)), 0)
        self.sends.append(Send(self._request(True, peer, at), after))

    def receive(self, peer: int, at: Place) -> None:
        """Receive a stretch where it belongs."""
        self.receives.append(Receive(self._request(False, peer, at), at.length, 0))
        self._written.append((at, len(self.receives)))

    def receive_into_slot(self, request: int, length: int, reductions: tuple[Reduction, ...] = ()) -> None:
        """Receive into a slot and make sums, which free all slots filled so far."""
        self._filled.append(request)
        self.receives.append(Receive(request, length, self._slot_free.get(request, 0), reductions))
        self._written += [(reduction.into, len(self.receives)) for reduction in reductions]
        if reductions:
            self._slot_free |= dict.fromkeys(self._filled, len(self.receives))
            self._filled.clear()

    def part_of(self, request: int, length: int) -> Place:
        """Return what a message of that length fills of a slot."""
        return Place(True, self.requests[request].at.begin, length)

    def _request(self, sends: bool, peer: int, at: Place) -> int:
        self.requests.append(Request(sends, peer, at))
        return len(self.requests) - 1


def make_program(
    operation: Literal["reduce_scatter", "all_gather"], algorithm: DeviceAlgorithm, shape: Shape
) -> Program | None:
    """Return the program of an operation; None where there is nothing to do.

    Block b is summed as ((x[b+1] + x[b+2]) + ...) + x[b], ranks counted modulo their number, whatever the chunk.
    """
    if shape.ranks == 1 or shape.block == 0:
        return None
    program = Program(shape)
    if operation == "reduce_scatter":
        (_ring_reduce_scatter if algorithm == "ring" else _direct_reduce_scatter)(program)
    else:
        (_ring_all_gather if algorithm == "ring" else _direct_all_gather)(program)
    return program


def _ring_reduce_scatter(program: Program) -> None:
    """In step s the block of rank - s - 1 goes to the next rank (Patarasuk and Yuan, JPDC 69, 2009)."""
    rank, ranks, *_ = program.shape
    following, preceding = (rank + 1) % ranks, (rank - 1) % ranks
    slots = [program.slot(preceding) for _ in range(SLOTS)]
    message = 0
    for step in range(ranks - 1):
        for place in program.chunks((rank - step - 1) % ranks):
            program.send(following, place)
        for into in program.chunks((rank - step - 2) % ranks):
            slot = slots[message % SLOTS]
            message += 1
            sources = (program.part_of(slot, into.length), into)
            program.receive_into_slot(slot, into.length, (Reduction(into, sources),))


def _direct_reduce_scatter(program: Program) -> None:
    """Everybody sends each its part at once; what comes from rank + 1 is needed first, so rank - 1 is served first."""
    rank, ranks, *_ = program.shape
    own = list(program.chunks(rank))
    theirs = {peer: list(program.chunks(peer)) for peer in range(ranks)}
    for number in range(len(own)):
        for distance in range(1, ranks):
            peer = (rank - distance) % ranks
            program.send(peer, theirs[peer][number])
    rows = [
        [program.slot((rank + distance) % ranks) for distance in range(1, ranks)] for _ in range(min(SLOTS, len(own)))
    ]
    for number, into in enumerate(own):
        row = rows[number % len(rows)]
        sources = (*(program.part_of(slot, into.length) for slot in row), into)
        for slot in row[:-1]:
            program.receive_into_slot(slot, into.length)
        program.receive_into_slot(row[-1], into.length, (Reduction(into, sources),))


def _ring_all_gather(program: Program) -> None:
    rank, ranks, *_ = program.shape
    for step in range(ranks - 1):
        for place in program.chunks((rank - step) % ranks):
            program.send((rank + 1) % ranks, place)
        for place in program.chunks((rank - step - 1) % ranks):
            program.receive((rank - 1) % ranks, place)


def _direct_all_gather(program: Program) -> None:
    rank, ranks, *_ = program.shape
    for place in program.chunks(rank):
        for distance in range(1, ranks):
            program.send((rank - distance) % ranks, place)
    for distance in range(1, ranks):
        for place in program.chunks((rank + distance) % ranks):
            program.receive((rank + distance) % ranks, place)


def _overlap(a: Place, b: Place) -> bool:
    return a.scratch == b.scratch and a.begin < b.begin + b.length and b.begin < a.begin + a.length
