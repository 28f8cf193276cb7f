"""Training on a GPU that is none (racing_gpu.py): the engine, the stage, messages and the real ranks are the real ones.

Tasks are over late and by chance, another way under every seed, and whatever nothing orders raises.
"""

import pytest
import torch
from racing_gpu import RacingGpu
from training import needs, train_on

from hpcpipe.device.messages import Direct, Staged

STEPS = "job.steps=3"


@pytest.fixture
def gpus(monkeypatch):
    """Let torch seem to see one GPU in every process, of which nobody else has one; returns those that were made."""
    from mpi4py import MPI

    made = []

    def make(number):
        made.append(RacingGpu(1000 * len(made) + MPI.COMM_WORLD.rank, pace=0.2))
        return made[-1]

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    monkeypatch.setattr("hpcpipe.device.gpu.num_gpus", lambda: 1)
    monkeypatch.setattr("hpcpipe.device.gpu.identity", lambda _number: f"GPU of rank {MPI.COMM_WORLD.rank}")
    monkeypatch.setattr("hpcpipe.device.gpu.TorchGpu", make)
    return made


def _overrides(hint, dispatch, *more):
    return (
        STEPS,
        "batch.microbatches=4",
        f'schedule.hint="{hint}"',
        f'schedule.dispatch="{dispatch}"',
        "parallel.pipeline=2",
        *more,
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("hint", "dispatch", "ahead", "memory", "more"),
    [
        ("bfw", "ready", 2, Staged, ()),
        ("1f1b", "fixed", 1, Direct, ()),
        ("zbv", "ready", 3, Direct, ()),
        ("bf", "ready", 2, Staged, ('model.recompute="all"', "optimizer.clip=1.0")),
    ],
)
def test_a_gpu_that_is_late_by_chance_gives_the_bits_of_the_cpu(
    comm, tmp_path, gpus, monkeypatch, hint, dispatch, ahead, memory, more
):
    needs(comm, 2)
    monkeypatch.setattr("hpcpipe.device.messages.Staged", memory)  # what is taken where MPI was not found to know GPUs
    expected = train_on(comm, tmp_path, *_overrides(hint, dispatch, 'device.kind="cpu"', *more))
    assert not gpus
    device = 'device.kind="cuda"', f"device.launch_ahead={ahead}", "device.nvtx=true"
    result = train_on(comm, tmp_path, *_overrides(hint, dispatch, *device, *more))
    if result is None:
        return
    assert result[0] == expected[0]
    assert all(map(torch.equal, result[1], expected[1]))
    (gpu,) = gpus
    assert gpu.ranges == 0
    assert any(label.startswith("UPDATE") for label in gpu.labels)
    assert any(label.startswith("B0") for label in gpu.labels)
    assert not any(stream.queue for stream in gpu.streams[:1]), "a step ended before its tasks had"


@pytest.mark.mpi(min_size=2)
def test_slices_give_their_gpus_the_tasks_that_they_agreed_on_in_one_order(comm, tmp_path, gpus):
    needs(comm, 2)
    sliced = _overrides("bf", "ready", "parallel.pipeline=1", "parallel.tensor=2", "comm.check_collectives=true")
    expected = train_on(comm, tmp_path, *sliced, 'device.kind="cpu"')
    result = train_on(comm, tmp_path, *sliced, 'device.kind="cuda"', "device.launch_ahead=3")
    if result is not None:
        assert result[0] == expected[0]
        assert all(map(torch.equal, result[1], expected[1]))


@pytest.mark.mpi(min_size=2)
def test_the_default_device_is_the_gpu_where_every_rank_sees_one(comm, tmp_path, gpus):
    result = train_on(comm, tmp_path, *_overrides("1f1b", "ready"))
    assert (result is None) == (not gpus)
