"""NCCL behind the surface of the other collectives, with a stand-in for it: pointers, counts, order, who has it not."""

from types import SimpleNamespace

import pytest
import torch
from late_gpu import LateGpu, LateNccl

from hpcpipe.collective import Group, nccl
from hpcpipe.collective.backend import OnGpu
from hpcpipe.collective.nccl import NcclBucket, NcclGroup, NcclMissingError
from hpcpipe.collective.nccl_tensor import NcclTensorGroup
from hpcpipe.job.schema import Comm
from hpcpipe.runtime import World
from hpcpipe.train.collectives import problem_with_nccl


class NoWaiting:
    def idle(self, due=None):
        pass

    def busy(self):
        pass


@pytest.fixture
def gpu(comm):
    return LateGpu(comm.rank)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_bucket_is_summed_and_shared_in_place_behind_the_tasks(comm, gpu, dtype):
    stand_in = LateNccl(gpu, comm)
    group = NcclGroup(comm, gpu=gpu, compute=gpu.compute, nccl=stand_in)
    flat = torch.zeros(comm.size * 5, dtype=dtype)
    bucket = NcclBucket(group, flat)
    ranks = torch.arange(comm.size * 5.0).to(dtype)
    for _ in range(3):
        gpu.launch(lambda: flat.copy_(ranks * (comm.rank + 1)))
        bucket.start_reduce_scatter()
        bucket.wait()
        expected = ranks * (comm.size * (comm.size + 1) // 2)
        assert torch.equal(flat[bucket.shard], expected[bucket.shard])
        gpu.launch(lambda: flat[bucket.shard].mul_(2))
        bucket.start_all_gather()
        bucket.wait()
        assert torch.equal(flat, expected * 2)
    gpu.launch(lambda: flat.copy_(ranks))
    bucket.start_all_reduce()
    with pytest.raises(RuntimeError, match="still under way"):
        bucket.start_all_gather()
    bucket.wait()
    assert torch.equal(flat, ranks * comm.size)
    bucket.free()
    group.free()
    assert stand_in.destroyed == 1


@pytest.mark.mpi(min_size=2)
def test_slices_sum_and_gather_on_the_stream_of_the_tasks_without_waiting(comm, gpu):
    stand_in = LateNccl(gpu, comm)
    slices = NcclTensorGroup(comm, gpu=gpu, compute=gpu.compute, waiting=NoWaiting(), nccl=stand_in)
    value = torch.full((3, 4), 7.0)
    gpu.launch(lambda: value.fill_(comm.rank + 1.0))
    total, rows = slices.all_reduce(value), slices.all_gather(value)
    gpu.synchronize()
    assert torch.equal(total, torch.full((3, 4), comm.size * (comm.size + 1) / 2))
    assert rows.shape == (comm.size, 3, 4)
    assert [row.unique().tolist() for row in rows] == [[rank + 1.0] for rank in range(comm.size)]
    slices.announce(0, 0, 1, 0)
    met = slices.meet()  # over MPI
    while not met():
        pass
    slices.free()


@pytest.mark.mpi(min_size=2)
def test_a_job_for_nccl_is_told_before_it_begins_which_rank_lacks_it(comm, monkeypatch):
    world = World(comm)
    job = SimpleNamespace(comm=Comm(dp_collectives="nccl"))
    here = comm.rank == comm.size - 1
    monkeypatch.setattr(nccl, "_found", lambda: (None, "cupy finds no NCCL") if here else (object(), ""))
    problem = problem_with_nccl(job, world)
    assert problem.startswith(f'[comm] dp_collectives = "nccl", but on rank {comm.size - 1} on ')
    assert "cupy finds no NCCL: pip install 'hpcpipe[cuda]'" in problem
    monkeypatch.setattr(nccl, "_found", lambda: (object(), ""))
    assert problem_with_nccl(job, world) == ""


@pytest.mark.mpi(min_size=2)
def test_buckets_of_a_new_group_use_the_communicator_of_those_before(comm, gpu, monkeypatch):
    stand_in = LateNccl(gpu, comm)
    monkeypatch.setattr(nccl, "_found", lambda: (stand_in, ""))
    backend = OnGpu(gpu, device=gpu.device, compute=gpu.compute, gpu_aware=False, nccl=True, kernels=object())
    for turn in range(3):
        group = Group(comm)
        flat = torch.full((comm.size * 2,), turn + 1.0)
        bucket = backend.bucket(group, flat, in_turn=True)
        bucket.start_all_reduce()
        bucket.wait()
        assert torch.equal(flat, torch.full((comm.size * 2,), comm.size * (turn + 1.0)))
        bucket.free()
        backend.release(group)
        group.free()
    assert stand_in.made == 1 and stand_in.destroyed == 0
    backend.free()
    assert stand_in.destroyed == 1


@pytest.mark.mpi(min_size=2)
def test_where_one_rank_lacks_nccl_all_are_told_and_none_waits(comm, gpu, monkeypatch):
    monkeypatch.setattr(nccl, "_found", lambda: (None if comm.rank == comm.size - 1 else LateNccl(gpu, comm), ""))
    with pytest.raises(NcclMissingError, match=r"hpcpipe\[cuda\]"):
        NcclGroup(comm, gpu=gpu, compute=gpu.compute)
