"""A job that is stopped and requeued goes on from its checkpoint by itself, on a real Slurm."""

import json
import sys
import time

import pytest
from conftest import real

STEPS = 3000
SETS = (f"job.steps={STEPS}", "checkpoint.every=100", "job.log_every=1000")


@pytest.mark.timeout(300)
def test_a_requeued_job_continues_its_curve_and_ends(cluster, tmp_path):
    (tmp_path / "job.toml").write_text(real())
    words = [word for one in SETS for word in ("--set", one)]
    job_id = cluster.run(sys.executable, "-m", "hpcpipe", "submit", "job.toml", *words, cwd=tmp_path).stdout.strip()
    runs = tmp_path / "runs" / "small"
    try:
        deadline = time.monotonic() + 150
        while len(_steps(runs / f"{job_id}-0")) < 10:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"no step: {cluster.job(job_id)['JobState']}\n{_text(runs / f'slurm-{job_id}.out')}"
                )
            time.sleep(0.05)
        cluster.run("scancel", "--signal=USR2", job_id)
        ended = cluster.wait_for_end(job_id)
    finally:
        cluster.run("scancel", job_id, check=False)
    log = _text(runs / f"slurm-{job_id}.out")
    assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", "1"), log
    first, second = _steps(runs / f"{job_id}-0"), _steps(runs / f"{job_id}-1")
    assert first == list(range(len(first)))
    assert len(first) < STEPS
    assert second == list(range(STEPS))
    assert f"goes on after step {len(first)} of " in log
    starts = json.loads((runs / f"{job_id}-1" / "history.json").read_text())["starts"]
    assert [(start["restart"], start["first_step"]) for start in starts] == [(0, 0), (1, len(first))]


def _steps(run):
    """Return the steps that a start's metrics hold."""
    return [json.loads(line)["step"] for line in _text(run / "metrics.jsonl").splitlines()]


def _text(path):
    return path.read_text() if path.exists() else ""
