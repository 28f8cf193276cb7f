"""Collectives between slices: sums in the order of the slices, the same bits everywhere, and tasks that must match."""

import numpy as np
import pytest
import torch

from hpcpipe.collective.tensor import CollectiveMismatchError, TensorGroup
from hpcpipe.plan import Kind
from hpcpipe.runtime import Waiting


@pytest.fixture
def group(comm):
    made = TensorGroup(comm, waiting=Waiting("sleep"), describe=lambda kind: Kind(kind).name)
    yield made
    made.free()


def _drawn(rank, shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype) * 10.0**rank


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_sum_is_made_in_the_order_of_the_slices(comm, group, dtype):
    shape = (3, 5, 7)
    total = group.all_reduce(_drawn(comm.rank, shape, dtype))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    expected = _drawn(0, shape, dtype).to(wide)
    for rank in range(1, comm.size):
        expected = expected + _drawn(rank, shape, dtype).to(wide)
    assert torch.equal(total, expected.to(dtype))
    assert total.shape == shape


@pytest.mark.mpi(min_size=2)
def test_large_sums_have_the_same_bits_on_all_slices_and_every_time(comm, group):
    shape = (100, 1001)
    totals = [group.all_reduce(_drawn(comm.rank, shape)) for _ in range(3)]
    exact = sum(_drawn(rank, shape).double() for rank in range(comm.size))
    torch.testing.assert_close(totals[0].double(), exact, rtol=1e-5, atol=10.0 ** (comm.size - 8))
    assert all(torch.equal(totals[0], each) for each in totals)
    assert len({total.tobytes() for total in comm.allgather(totals[0].numpy())}) == 1


@pytest.mark.mpi(min_size=2)
def test_the_argument_is_kept_and_strided_and_empty_tensors_are_summed(comm, group):
    value = _drawn(comm.rank, (6, 4))
    before = value.clone()
    total = group.all_reduce(value.t())
    assert torch.equal(value, before)
    assert torch.equal(total, group.all_reduce(value).t())
    assert group.all_reduce(torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.mpi(min_size=2)
def test_what_is_gathered_stands_in_the_order_of_the_slices(comm, group):
    gathered = group.all_gather(torch.full((2, 3), float(comm.rank)))
    assert torch.equal(gathered, torch.arange(float(comm.size)).view(-1, 1, 1).expand(-1, 2, 3))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["task", "step", "shape", "number"])
def test_collectives_of_different_tasks_are_an_error_that_names_both(comm, what):
    group = TensorGroup(comm, waiting=Waiting("sleep"), check=True, describe=lambda kind: Kind(kind).name)
    group.announce(3, Kind.F, 1, 0)
    group.all_reduce(torch.ones(4))  # alike
    last = comm.rank == comm.size - 1
    if what != "number":
        group.announce(4 if what == "step" and last else 3, Kind.B if what == "task" and last else Kind.F, 2, 1)
    elif last:
        group.announce(3, Kind.F, 1, 0)
    size = 5 if what == "shape" and last else 4
    with pytest.raises(CollectiveMismatchError) as caught:
        group.all_reduce(torch.ones(size))
    named = {
        "task": ("F2.1 in step 3", "B2.1 in step 3"),
        "step": ("F2.1 in step 3", "F2.1 in step 4"),
        "shape": ("of 16 bytes of F2.1", "of 20 bytes of F2.1"),
        "number": ("all-reduce 1 of 16 bytes of F1", "all-reduce 0 of 16 bytes of F1"),
    }[what]
    assert all(words in str(caught.value) for words in named)
    group.free()


@pytest.mark.mpi(min_size=2)
def test_slices_that_meet_tell_each_other_their_tasks(comm):
    group = TensorGroup(comm, waiting=Waiting("sleep"), describe=lambda kind: Kind(kind).name)
    group.announce(0, Kind.F, 1, 0)
    met = group.meet()
    while not met():
        pass
    group.announce(0, Kind.F, 2 + comm.rank, 0)
    met = group.meet()
    with pytest.raises(CollectiveMismatchError, match=r"F2.*F\d|F\d.*F2"):
        while not met():
            pass
    group.free()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_waits_says_in_what_and_lets_other_collectives_go_on(comm):
    """Rank 0 comes only when the others have told it, from within their waiting, that they wait."""
    seen, advanced, told = [], [], []

    class Watched(Waiting):
        def idle(self, due=None):
            if not seen and comm.rank:
                told.append(comm.isend(group.under_way, dest=0))
            seen.append(group.under_way)
            super().idle(due)

    group = TensorGroup(comm.Dup(), waiting=Watched("sleep"), describe=lambda kind: Kind(kind).name)
    group.beside = lambda: advanced.append(1)
    group.announce(0, Kind.B, 7, 1)
    if comm.rank == 0:
        assert {comm.recv() for _ in range(comm.size - 1)} == {"all-reduce 0 of B7.1"}
    total = group.all_reduce(torch.ones(2))
    assert np.all(total.numpy() == comm.size)
    assert len(advanced) == len(seen) >= (comm.rank > 0)
    assert group.under_way == ""
    for request in told:
        request.wait()
    group.free()
