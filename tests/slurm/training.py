"""Stories of a real training with checkpoints, and the same training without any trouble to compare with."""

import json
import os
import sys
import threading
from pathlib import Path

from slurm_jobs import real

STEPS, EVERY = 90, 10
SLOW = str(Path(__file__).parent / "slow")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
_ALONE, _FOUND = threading.Lock(), {}


def begin(it, steps, *sets, step_s=0.04):
    """Submit a training of so many slow steps with checkpoints, and wait until it has done one."""
    it.job, it.environment, it.saves = real(), _slow(step_s), True
    it.start(*_settings(steps), f"checkpoint.every={EVERY}", *sets)


def end(it, steps):
    """Wait until the job is done; return what its last start tells of all of them, and what should have come out."""
    ended = it.cluster.wait_for_end(it.job_id, timeout=300)
    assert ended["JobState"] == "COMPLETED", it.log
    run = it.runs / f"{it.job_id}-{ended['Restarts']}"
    facts = it.end()
    facts.bits = _bits(run)
    facts.starts = json.loads((run / "history.json").read_text())["starts"]
    with _ALONE:
        facts.undisturbed = _undisturbed(it.cluster, it.folder, steps)
    return facts


def check(it, *, restarts):
    """Hold that starts follow each other and every step is there once, with the bits of an undisturbed training."""
    assert int(it.Restarts) == restarts
    assert [start["restart"] for start in it.starts] == list(range(restarts + 1))
    first_steps = [start["first_step"] for start in it.starts]
    assert first_steps == sorted(first_steps)
    assert first_steps[0] == 0 < first_steps[-1]
    assert it.bits == it.undisturbed


def _undisturbed(cluster, folder, steps):
    if steps in _FOUND:
        return _FOUND[steps]
    folder = folder / "undisturbed"
    folder.mkdir()
    (folder / "job.toml").write_text(real())
    words = [word for one in _settings(steps) for word in ("--set", one)]
    command = ("srun", "-n2", "--mpi=pmi2", sys.executable, "-m", "hpcpipe", "run", "job.toml", *words, "--quiet")
    cluster.run(*command, cwd=folder, timeout=240, environment=ONE_THREAD)
    found = _bits(folder / "runs" / "small" / "latest")
    assert [step for step, _, _ in found] == list(range(steps))
    return _FOUND.setdefault(steps, found)


def _settings(steps):
    return (f"job.steps={steps}", "job.log_every=1000", "events.on=false", "model.dropout=0.1")


def _slow(step_s):
    path = os.pathsep.join(filter(None, (SLOW, os.environ.get("PYTHONPATH"))))
    return ONE_THREAD | {"PYTHONPATH": path, "HPCPIPE_TEST_STEP_S": str(step_s)}


def _bits(run):
    """Return step, loss and norm of every step, as they were written."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(line["step"], line["loss"], line["grad_norm"]) for line in map(json.loads, lines)]
