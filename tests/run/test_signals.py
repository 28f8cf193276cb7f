"""Signals to a rank or to the command: all ranks stop after the same step with whole files; told twice, at once."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from test_run_command import MPIEXEC

from hpcpipe.events import open_run

JOB = """
[job]
name = "stopped"
steps = 1000000
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = FORWARD
backward_ms = 2
[parallel]
pipeline = 3
[schedule]
hint = "bf"
[batch]
microbatches = 4
"""
PATIENCE_S = 60


class _Run:
    """A run that would not end by itself, ended whatever happens."""

    def __init__(self, folder, *, forward_ms=1, launcher=(), options=()):
        (folder / "job.toml").write_text(JOB.replace("FORWARD", str(forward_ms)))
        self.directory = folder / "run"
        words = [sys.executable, "-m", "hpcpipe", "run", "job.toml", "--run-dir", "run", *options]
        self.process = subprocess.Popen(
            [*launcher, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def until(self, condition):
        """Wait for a condition, or fail."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def pid(self, rank):
        """Return the process of a rank; waits for its introduction."""
        self.until((self.directory / "ranks.json").exists)
        return json.loads((self.directory / "ranks.json").read_text())[rank]["pid"]

    def lines(self):
        """Return the finished steps."""
        path = self.directory / "metrics.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    def end(self):
        """Return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "to"),
    [(signal.SIGTERM, 2), (signal.SIGUSR2, 0), (signal.SIGTERM, "command"), (signal.SIGTERM, "mpiexec")],
)
def test_all_ranks_stop_after_the_same_step_with_whole_files(tmp_path, number, to):
    with _Run(tmp_path, launcher=[MPIEXEC, "-n", "3"] if to == "mpiexec" else ()) as run:
        run.until(lambda: len(run.lines()) >= 2)
        os.kill(run.pid(to) if isinstance(to, int) else run.process.pid, number)
        code, out, err = run.end()
    steps = [json.loads(line)["step"] for line in run.lines()]
    assert code == 75, err
    assert steps == list(range(len(steps)))
    told = f"stopped on all ranks after step {len(steps)} of 1000000 by {number.name} to "
    assert out.count(told) == 1
    assert "no checkpoint is configured" in out
    assert "Traceback" not in err
    log = open_run(run.directory)
    assert not log.gaps
    assert [rank.steps.step.tolist() for rank in log.ranks] == [steps] * 3
    assert all(rank.complete for rank in log.ranks)


def test_tensor_slices_stop_after_the_same_step(tmp_path):
    """One slice is told; none may be left behind in an agreement or a sum."""
    with _Run(tmp_path, options=("--set", "parallel.pipeline=2", "--set", "parallel.tensor=2")) as run:
        run.until(lambda: len(run.lines()) >= 2)
        os.kill(run.pid(3), signal.SIGTERM)
        code, out, err = run.end()
    assert code == 75, err
    assert f"stopped on all ranks after step {len(run.lines())} of 1000000 by SIGTERM to " in out, out
    log = open_run(run.directory)
    assert len({len(rank.steps.step) for rank in log.ranks}) == 1
    assert all(rank.complete for rank in log.ranks)


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    """The first step never ends here, so one signal alone has nothing to wait for."""
    with _Run(tmp_path, forward_ms=10_000_000) as run:
        rank = run.pid(1)
        give_up = time.monotonic() + PATIENCE_S
        while run.process.poll() is None and time.monotonic() < give_up:  # within a second it counts as the first one
            try:
                os.kill(rank, signal.SIGTERM)
            except ProcessLookupError:
                break
            time.sleep(0.3)
        code, _, err = run.end()
    assert code == 128 + signal.SIGTERM, err
    assert "rank 1 (stage 1)" in err
    assert "got a second signal (SIGTERM): the job ends at once" in err
    assert "Traceback" not in err
