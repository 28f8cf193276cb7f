"""Jobs that benchmarks run step by step on real ranks: their memory and their least times are the simulator's."""

from pathlib import Path

import pytest

from hpcpipe.bench.emulated import emulated_job, measured, predicted
from hpcpipe.runtime import World

FAST = ("device.forward_ms=1", "device.backward_ms=2", "device.weight_ms=1", "batch.microbatches=6", "job.steps=3")
NOISE = 'variability.compute={ model = "lognormal", sigma = 0.5 }'


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hint", ["1f1b", "zb-h1", "zbv"])
def test_a_fixed_order_holds_what_is_simulated_and_takes_no_less(comm, tmp_path, hint):
    world = World(comm)
    order = (f'schedule.hint="{hint}"', 'schedule.dispatch="fixed"', f"parallel.pipeline={comm.size}")
    job = emulated_job(tmp_path, [*FAST, NOISE, *order])
    folder = Path(world.share(str(tmp_path / "run")))
    folder.mkdir(exist_ok=True)
    world.barrier()
    prepared = []
    real = measured(job, world, folder, prepare=prepared.append)
    assert len(prepared) == 1
    if real is None:
        assert comm.rank > 0
        return
    like = predicted(job)
    assert (real.in_flight, real.stash) == (like.in_flight, like.stash)
    assert len(real.ms) == 3
    assert all(took >= 0.999 * least for took, least in zip(real.ms, like.ms, strict=True))
    assert real.after(1).ms == real.ms[1:]
