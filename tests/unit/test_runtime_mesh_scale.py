"""The start of thousands of ranks on paper: communicators and bytes a rank as for few, no group larger than its row."""

# ruff: noqa: N802 - the names are MPI's
import sys
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from hpcpipe.runtime import Mesh, Peer, Place, World, clock_shifts, introduce


class PaperComm:
    """Stands for a communicator: notes what is made from it, and sends nothing."""

    def __init__(self, rank, size, made):
        self.rank, self.size, self._made = rank, size, made

    def Dup(self):
        self._made.append(("dup", 0, self.rank))
        return PaperComm(self.rank, self.size, self._made)

    def Split(self, color, key):
        self._made.append(("split", color, key))
        return PaperComm(0, 1, self._made)

    def Split_type(self, kind):
        self._made.append(("node", 0, 0))
        return PaperComm(0, 1, self._made)

    def Allreduce(self, mine, sums, op=None):
        sums[:] = mine

    def Set_errhandler(self, handler):
        pass

    def Free(self):
        pass


@pytest.fixture
def paper(monkeypatch):
    """Put a module in MPI's place that takes communicators on paper; return what every rank of a mesh makes."""
    names = SimpleNamespace(Intracomm=lambda comm: comm, COMM_TYPE_SHARED=0, ERRORS_RETURN=0, MAX=0, SUM=0)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=names))

    def make(**sizes):
        size = sizes["pipeline"] * sizes["data"] * sizes["tensor"]
        made = [[] for _ in range(size)]
        for rank in range(size):
            Mesh(PaperComm(rank, size, made[rank]), **sizes)
        return made

    return make


def test_4096_ranks_make_no_more_communicators_each_than_8_do(paper):
    few, many = paper(pipeline=2, data=4, tensor=1), paper(pipeline=64, data=64, tensor=1)
    assert {len(each) for each in few} == {len(each) for each in many}
    assert [[kind for kind, _, _ in each] for each in many] == [[kind for kind, _, _ in few[0]]] * 4096


@pytest.mark.parametrize(("pipeline", "data", "tensor"), [(64, 32, 1), (16, 32, 4)])
def test_every_group_of_2048_ranks_is_a_row_of_the_mesh_in_its_order(paper, pipeline, data, tensor):
    made = paper(pipeline=pipeline, data=data, tensor=tensor)
    splits = [[(color, key) for kind, color, key in each if kind == "split"] for each in made]
    for number in range(len(splits[0])):
        groups = defaultdict(list)
        for rank, each in enumerate(splits):
            color, key = each[number]
            groups[color].append((key, rank))
        sizes = {len(group) for group in groups.values()}
        assert sizes in ({pipeline}, {data}, {tensor})
        assert tensor == 1 or (number == len(splits[0]) - 1) == (sizes == {tensor})
        for group in groups.values():
            ranks = [rank for _, rank in sorted(group)]
            assert len({b - a for a, b in pairwise(ranks)}) == 1


RANKS_OF_A_NODE = 4


class PaperWorld(PaperComm):
    """Stands for a communicator whose ranks all say the same: counts the bytes that arrive at its rank."""

    def __init__(self, rank, size):
        super().__init__(rank, size, [])
        self.received = self.calls = 0

    def Split_type(self, kind, key=0):
        self.node = PaperWorld(self.rank % RANKS_OF_A_NODE, RANKS_OF_A_NODE)
        return self.node

    def Allgather(self, mine, all_of_them):
        self._take(all_of_them, mine[0])

    def Allgatherv(self, mine, place):
        self._take(place[0], np.tile(mine, self.size))

    def Gather(self, mine, all_of_them):
        assert (all_of_them is None) == (self.rank != 0)
        self._take(all_of_them, mine[0])

    def Gatherv(self, mine, place):
        self._take(None if place is None else place[0], None if place is None else np.tile(mine, self.size))

    def Bcast(self, buffer, root=0):
        self._take(buffer, buffer)

    def Allreduce(self, mine, result, op=None):
        self._take(result, mine)

    def _take(self, buffer, content):
        self.calls += 1
        if buffer is not None:
            buffer[:] = content
            self.received += buffer.nbytes


@pytest.fixture
def received(monkeypatch):
    """Return what the start of a run brings to a rank of a mesh: bytes, and collective calls."""
    names = SimpleNamespace(
        Intracomm=lambda comm: comm, COMM_TYPE_SHARED=0, ERRORS_RETURN=0, MIN=0, Get_library_version=lambda: "paper"
    )
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=names))

    def count(rank, *, pipeline, data):
        comm, row = PaperWorld(rank, pipeline * data), PaperWorld(rank // data, pipeline)
        world, place = World(comm), Place.of(rank, pipeline=pipeline, data=data, tensor=1)
        introduce(world, Peer(10_000 + rank, 4711, "a-host", place.stage, 0))
        clock_shifts(World(row), place, 0)
        assert world.first("") is None
        world.gather("")
        comms = (comm, comm.node, row)
        return sum(each.received for each in comms), sum(each.calls for each in comms)

    return count


def test_a_rank_of_4096_is_told_no_more_than_one_of_64_but_for_rank_0(received):
    few, many = received(33, pipeline=16, data=4), received(2049, pipeline=16, data=256)
    assert few == many
    assert few[0] < 2000


def test_rank_0_alone_holds_the_table_of_all_ranks(received):
    few, calls = received(0, pipeline=16, data=4)
    many, calls_of_many = received(0, pipeline=16, data=256)
    assert calls_of_many == calls
    assert many - few == (4096 - 64) * (many - few) // (4096 - 64)
    assert (many - few) // (4096 - 64) < 200
