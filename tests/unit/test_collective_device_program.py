"""The programs of a ring on GPUs, played through for all ranks with symbols: who is added to whom, in which order."""

import random
from collections import defaultdict, deque
from typing import Any

import pytest

from hpcpipe.collective.device_program import Place, Shape, make_program


class Rank:
    """One rank's buffer and scratch, and how far its program has come."""

    def __init__(self, rank: int, program: Any, length: int) -> None:
        self.program = program
        self.memory = {False: [f"x{rank}"] * length, True: ["?"] * program.scratch}
        self.worked_off = self.started_receives = self.started_sends = 0
        self.posted: dict[int, deque[int]] = defaultdict(deque)
        self.arrived: dict[int, list[str]] = {}

    def read(self, at: Place) -> list[str]:
        return self.memory[at.scratch][at.begin : at.begin + at.length]

    def write(self, at: Place, values: list[str]) -> None:
        self.memory[at.scratch][at.begin : at.begin + at.length] = values


def _play(operation: Any, algorithm: Any, ranks: int, block: int, chunk: int, seed: int) -> list[Rank]:
    """Carry out what may be next in an order drawn by chance; a message is written when it comes, as MPI does."""
    draw = random.Random(seed)
    players = [
        Rank(rank, make_program(operation, algorithm, Shape(rank, ranks, block, chunk)), ranks * block)
        for rank in range(ranks)
    ]
    wires: dict[tuple[int, int], deque[list[str]]] = defaultdict(deque)
    while True:
        moves: list[Any] = []
        for me, player in enumerate(players):
            program = player.program
            n = player.started_receives
            if n < len(program.receives) and program.receives[n].after <= player.worked_off:
                moves.append(("post", me))
            n = player.started_sends
            if n < len(program.sends) and program.sends[n].after <= player.worked_off:
                moves.append(("send", me))
            moves += [("come", me, peer) for peer, posted in player.posted.items() if posted and wires[peer, me]]
            if player.worked_off in player.arrived:
                moves.append(("add", me))
        if not moves:
            return players
        kind, me, *peers = draw.choice(moves)
        player = players[me]
        if kind == "post":
            number = player.started_receives
            player.posted[player.program.requests[player.program.receives[number].request].peer].append(number)
            player.started_receives += 1
        elif kind == "send":
            request = player.program.requests[player.program.sends[player.started_sends].request]
            assert request.sends
            wires[me, request.peer].append(player.read(request.at))
            player.started_sends += 1
        elif kind == "come":
            (peer,) = peers
            number = player.posted[peer].popleft()
            receive, values = player.program.receives[number], wires[peer, me].popleft()
            assert len(values) == receive.length
            at = player.program.requests[receive.request].at
            player.write(Place(at.scratch, at.begin, receive.length), values)
            player.arrived[number] = values
        else:
            del player.arrived[player.worked_off]
            for into, sources in player.program.receives[player.worked_off].reductions:
                columns = zip(*(player.read(source) for source in sources), strict=True)
                sums = []
                for first, *others in columns:
                    total = first
                    for other in others:
                        total = f"({total}+{other})"
                    sums.append(total)
                player.write(into, sums)
            player.worked_off += 1


CASES = [(2, 3, 2), (3, 5, 2), (4, 7, 7), (5, 9, 2), (6, 1, 1), (4, 40, 3)]


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize(("ranks", "block", "chunk"), CASES)
def test_every_block_is_summed_once_in_the_order_of_the_ring(
    algorithm: str, ranks: int, block: int, chunk: int
) -> None:
    """Block b is ((x[b+1] + x[b+2]) + ...) + x[b], as native/program.hpp promises for its own."""
    for seed in range(5):
        players = _play("reduce_scatter", algorithm, ranks, block, chunk, seed)
        for b, player in enumerate(players):
            assert player.worked_off == len(player.program.receives)
            assert player.started_sends == len(player.program.sends)
            expected = f"x{(b + 1) % ranks}"
            for distance in range(2, ranks + 1):
                expected = f"({expected}+x{(b + distance) % ranks})"
            assert player.memory[False][b * block : (b + 1) * block] == [expected] * block


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
@pytest.mark.parametrize(("ranks", "block", "chunk"), CASES)
def test_every_rank_gets_every_block(algorithm: str, ranks: int, block: int, chunk: int) -> None:
    for seed in range(5):
        players = _play("all_gather", algorithm, ranks, block, chunk, seed)
        whole = [f"x{rank}" for rank in range(ranks) for _ in range(block)]
        assert [player.memory[False] for player in players] == [whole] * ranks


def test_one_rank_and_an_empty_buffer_have_nothing_to_do() -> None:
    assert make_program("reduce_scatter", "ring", Shape(0, 1, 8, 4)) is None
    assert make_program("all_gather", "direct", Shape(0, 4, 0, 4)) is None
