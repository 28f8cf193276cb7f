"""Forwards alone: every micro-batch passes every virtual stage once and in order, whatever the placement and timing."""

import random
import time

import pytest
import torch
from training import rest

from hpcpipe.device.cpu import Cpu
from hpcpipe.plan import Placement
from hpcpipe.runtime import Mesh, Waiting
from hpcpipe.runtime.forward import ForwardPass

CASES = [(1, "round-robin"), (2, "round-robin"), (3, "round-robin"), (2, "v"), (3, "v")]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("chunks", "shape"), CASES)
@pytest.mark.parametrize("microbatches", [1, 5, 23])
def test_every_micro_batch_passes_all_virtual_stages_in_order(comm, chunks, shape, microbatches):
    """The messages are larger than MPI sends without the receiver's consent, and ranks are slow at random."""
    placement, draws = Placement(comm.size, chunks, shape), random.Random(f"{comm.rank}/{chunks}/{shape}")
    mesh = Mesh(comm, pipeline=comm.size, data=1, tensor=1)
    moved, ended = [], {}

    def run(chunk, microbatch, value):
        if draws.random() < 0.2:
            time.sleep(draws.random() * 2e-3)
        virtual = placement.virtual(comm.rank, chunk)
        if virtual == 0:
            assert value is None
            value = {"seen": [], "of": microbatch, "big": torch.full((20_000 + 100 * microbatch,), float(microbatch))}
        assert value["of"] == microbatch
        value = {**value, "seen": [*value["seen"], virtual], "big": value["big"] + 1}
        if virtual == placement.virtual_stages - 1:
            ended[microbatch] = value
        return value

    forward = ForwardPass(mesh, placement, memory=Cpu(sharing_ranks=comm.size))
    for _ in range(2):  # a second pass finds nothing of the first one
        ended.clear()
        forward.run(microbatches, run, waiting=Waiting("sleep"), moved=lambda: moved.append(1))
        if placement.owner(placement.virtual_stages - 1)[0] == comm.rank:
            assert sorted(ended) == list(range(microbatches))
            for microbatch, value in ended.items():
                assert value["seen"] == list(range(placement.virtual_stages))
                assert value["big"].shape == (20_000 + 100 * microbatch,)
                assert torch.all(value["big"] == microbatch + placement.virtual_stages)
    assert len(moved) == 2 * microbatches * chunks
    rest(comm)
    forward.free()
    mesh.free()
