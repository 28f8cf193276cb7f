"""One rank raises, exits or dies: all ranks are gone within seconds, the user is told why, the log stays readable."""

import json
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from command import EMULATED, FAULTS, QUICKSTART, hpcpipe, is_alive, small
from test_run_command import MPIEXEC

RANK, RANKS = 1, 3
END_WITHIN_S = 5.0
ON_EMULATED = {"HPCPIPE_TEST_FAULT_EMULATED": "1"}
LONG = small("job.steps=1000", f"parallel.pipeline={RANKS}")


def _environment(tmp_path, what):
    return {
        "PYTHONPATH": os.pathsep.join([str(FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HPCPIPE_TEST_FAULT": f"{what}:{RANK}:3",
        "HPCPIPE_TEST_FAULT_TIME": str(tmp_path / "when"),
    }


def _emulated(folder):
    """Return the arguments of a run whose ranks start without torch."""
    (folder / "job.toml").write_text(EMULATED)
    return "job.toml", "--set", f"parallel.pipeline={RANKS}"


def _seconds_since_fault(tmp_path):
    return time.time() - float((tmp_path / "when").read_text())


class _Ended(NamedTuple):
    """A plain run that failed: how it ended, how long after the fault, and the ranks that outlived it for long."""

    folder: Path
    process: subprocess.CompletedProcess
    seconds: float
    left: set[int]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return the runs in which a rank fails, by what it does; each is started once."""

    @cache
    def run(what):
        folder = tmp_path_factory.mktemp(what)
        job, environment = (QUICKSTART, *LONG), _environment(folder, what)
        if what not in ("raise", "kill"):
            job, environment = _emulated(folder), {**environment, **ON_EMULATED}
        process = hpcpipe("run", *job, cwd=folder, environment=environment)
        seconds = _seconds_since_fault(folder)
        ranks = json.loads(next((folder / "runs").glob("*/*/ranks.json")).read_text())
        return _Ended(folder, process, seconds, _still_alive({rank["pid"] for rank in ranks}))

    return run


@pytest.mark.parametrize("what", ["raise", "exit", "kill", "segv", "vanish"])
def test_a_plain_run_ends_within_seconds_with_exit_code_4_and_the_rank_named(ended, what):
    _, process, seconds, _ = ended(what)
    assert seconds < END_WITHIN_S
    assert process.returncode == 4, process.stderr
    assert re.search(rf"rank {RANK}\b", process.stderr), process.stderr
    if what == "raise":
        assert "ArithmeticError: this stage was told to fail" in process.stderr
        assert "in faulty" in process.stderr


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_a_run_under_mpiexec_ends_as_fast(tmp_path, what):
    process = _under(MPIEXEC, tmp_path, what)
    assert _seconds_since_fault(tmp_path) < END_WITHIN_S
    assert process.returncode != 0
    if what == "raise":
        assert process.returncode == 4
        assert "ArithmeticError" in process.stderr


@pytest.mark.parametrize("what", ["kill", "vanish"])
def test_where_the_launcher_does_nothing_the_job_ends_as_fast(tmp_path, what):
    version = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    leave = ["-disable-auto-cleanup"] if "HYDRA" in version else []  # Open MPI ends the others itself
    process = _under(MPIEXEC, tmp_path, what, *leave)
    assert _seconds_since_fault(tmp_path) < END_WITHIN_S
    assert process.returncode != 0


def _under(launcher, folder, what, *options):
    """Return how emulated ranks that a launcher has started have ended."""
    return subprocess.run(
        [launcher, *options, "-n", str(RANKS), sys.executable, "-m", "hpcpipe", "run", *_emulated(folder)],
        cwd=folder,
        env={**os.environ, **_environment(folder, what), **ON_EMULATED},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("what", ["raise", "kill"])
def test_the_log_of_a_failed_run_is_analysed_up_to_its_end(ended, what):
    process = hpcpipe("analyze", "runs/quickstart/latest", "--json", cwd=ended(what).folder)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert len(report["ranks"]) == RANKS
    assert all(sum(rank["classes"].values()) == rank["wall_ns"] for rank in report["ranks"])
    assert report["steps"][1] >= 1
    if what == "kill":
        assert report["gaps"]


@pytest.mark.parametrize("what", ["raise", "exit", "kill", "segv", "vanish"])
def test_no_rank_is_left_behind(ended, what):
    assert not ended(what).left


def _still_alive(pids):
    """Return those that are there when a while has passed."""
    give_up = time.monotonic() + END_WITHIN_S
    while (alive := {pid for pid in pids if is_alive(pid)}) and time.monotonic() < give_up:
        time.sleep(0.05)
    return alive
