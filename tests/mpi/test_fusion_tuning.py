"""`[tune] fusion` in real runs: trained parameters keep their bits, and the log tells every trial."""

from functools import partial
from pathlib import Path

import pytest
import torch
from training import LOGGED, load, needs, train_job

from hpcpipe.collective import tuner
from hpcpipe.events import open_run

pytest.importorskip("sklearn")


def _job(folder, pipeline, fusion):
    return load(
        folder,
        f"parallel.pipeline={pipeline}",
        "parallel.data=2",
        "batch.microbatches=3",
        "batch.microbatch_size=1",
        f'tune.fusion="{fusion}"',
        "job.steps=50",
        LOGGED,
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_run_that_looks_for_its_bucket_size_trains_to_the_same_bits_and_logs_what_it_tried(
    comm, tmp_path, pipeline, monkeypatch
):
    needs(comm, 2 * pipeline)
    # Short trials, five of them whatever they find: how long a step takes here is nothing to rely on.
    monkeypatch.setattr(tuner, "FusionTuner", partial(tuner.FusionTuner, steps=2, gain=0.0, most=5))
    (tmp_path / "off").mkdir()
    (tmp_path / "on").mkdir()
    expected = train_job(comm, tmp_path / "off", _job(tmp_path / "off", pipeline, "off"))
    counts = []
    result = train_job(
        comm,
        tmp_path / "on",
        _job(tmp_path / "on", pipeline, "on"),
        before_step=lambda _step, rank: counts.append(len(rank.buckets)),
    )
    if result is not None:
        assert result[0] == expected[0]
        assert all(torch.equal(a, b) for a, b in zip(result[1], expected[1], strict=True))
        assert len(set(counts)) > 1, "every size made the same buckets"
    if comm.rank == 0:
        (run,) = [each for each in Path(tmp_path / "on").iterdir() if each.name.startswith("run-")]
        decisions = open_run(run).ranks[0].decisions
        assert {about.decode() for about in decisions.what.tolist()} == {"fusion"}
        verbs = [why.decode().split()[0] for why in decisions.why.tolist()]
        assert verbs == [*["try"] * 5, "keep"]
        assert decisions.step.tolist() == sorted(decisions.step.tolist())
