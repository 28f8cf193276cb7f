"""The communicators of thousands of ranks on paper: as many a rank as for few, and no group larger than its row."""

# ruff: noqa: N802 - the names are MPI's
import sys
from collections import defaultdict
from itertools import pairwise
from types import SimpleNamespace

import pytest

from hpcpipe.runtime import Mesh


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
