"""Ranks started with the real mpiexec: exit codes, dead ranks named, nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcpipe.cluster import launch as launch_module
from hpcpipe.cluster import mpiexec
from hpcpipe.cluster.environment import child_environment

needs_mpiexec = pytest.mark.skipif(mpiexec.find_mpiexec() is None, reason="no mpiexec here")

RANK = """
import json, os, signal, socket, sys, time
from pathlib import Path
folder, how, who = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if how == "early":  # before MPI has started
    time.sleep(0.3 if os.environ["PMI_RANK"] == str(who) else 30)
    os.kill(os.getpid(), signal.SIGKILL)
from mpi4py import MPI
comm = MPI.COMM_WORLD
ranks = comm.gather({"rank": comm.rank, "pid": os.getpid(), "host": socket.gethostname(), "stage": comm.rank}, 0)
if comm.rank == 0:
    (folder / "partial").write_text(json.dumps(ranks))
    (folder / "partial").rename(folder / "ranks.json")
comm.Barrier()
if how == "hang":
    while True:
        time.sleep(0.05)
time.sleep(0.3)  # gives the launcher's side the time to read who is who
if how == "exit":
    sys.exit(who)
if comm.rank == who:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leave":
        os._exit(3)
    if how == "record":
        (folder / "failures").mkdir()
        record = {"rank": who, "stage": who, "host": "h", "pid": 1, "exit_code": 6, "reason": "Traceback: hung"}
        (folder / "failures" / "rank_00001.json").write_text(json.dumps(record))
        comm.Abort(4)
if how == "speak":
    print(f"rank {comm.rank} speaks {os.environ.get('GREETING')}", flush=True)
    print("and complains", file=sys.stderr, flush=True)
    sys.exit(0)
while True:
    time.sleep(0.05)
"""

START = """
import sys
from pathlib import Path
from hpcpipe.cluster.launch import launch
program, folder, how, who = sys.argv[1:]
sys.exit(launch([sys.executable, program, folder, how, who], 2, Path(folder), {"GREETING": "hello"}))
"""


def command(folder: Path, how: str, who: int = 1) -> list[str]:
    (folder / "rank.py").write_text(RANK)
    (folder / "start.py").write_text(START)
    return [sys.executable, str(folder / "start.py"), str(folder / "rank.py"), str(folder), how, str(who)]


def run(folder: Path, how: str, who: int = 1) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(folder, how, who), capture_output=True, text=True, timeout=100, check=False, env=child_environment()
    )


def named(said: str) -> list[int]:
    """Return the ranks that the sentence names: two where the launcher ended the other before anybody looked."""
    who, _, _ = said.partition(" was killed")
    return [int(rank) for rank in re.findall(r"\brank (\d+)", who)]


def processes_of(folder: Path) -> list[int]:
    """Return the processes whose command line names the folder's rank program."""
    needle = str(folder / "rank.py").encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if needle in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition: "object", seconds: float) -> bool:
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


@needs_mpiexec
@pytest.mark.timeout(110)
def test_output_and_environment_pass_through_and_success_is_0(tmp_path: Path) -> None:
    done = run(tmp_path, "speak")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert f"{rank}" in done.stdout
    assert done.stdout.count("speaks") == 2
    assert done.stdout.count("hello") == 2
    assert done.stderr.count("and complains") == 2


@needs_mpiexec
@pytest.mark.timeout(110)
def test_an_exit_code_on_which_all_ranks_agree_is_the_runs(tmp_path: Path) -> None:
    done = run(tmp_path, "exit", 5)
    assert (done.returncode, done.stderr) == (5, "")


@needs_mpiexec
@pytest.mark.timeout(110)
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_killed_is_named_with_its_signal_and_ends_the_run_with_4(tmp_path: Path, who: int) -> None:
    done = run(tmp_path, "kill", who)
    assert done.returncode == 4
    assert who in named(done.stderr)
    assert f"rank {who} (stage {who}) on " in done.stderr
    assert "killed by signal 9 (SIGKILL)" in done.stderr
    assert str(tmp_path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert "BAD TERMINATION" not in done.stdout + done.stderr


@needs_mpiexec
@pytest.mark.timeout(110)
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_is_killed_before_the_ranks_have_met_is_named_too(tmp_path: Path, who: int) -> None:
    done = run(tmp_path, "early", who)
    assert done.returncode == 4
    assert who in named(done.stderr)
    assert "was killed by signal 9 (SIGKILL)" in done.stderr


@needs_mpiexec
@pytest.mark.timeout(110)
def test_a_rank_that_leaves_by_itself_is_named_with_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "leave", 1)
    assert done.returncode == 4
    assert "rank 1 (stage 1)" in done.stderr
    assert "ended with exit code 3" in done.stderr


@needs_mpiexec
@pytest.mark.timeout(110)
def test_the_exit_code_that_a_rank_recorded_wins(tmp_path: Path) -> None:
    assert run(tmp_path, "record").returncode == 6


@needs_mpiexec
@pytest.mark.timeout(110)
def test_what_an_earlier_run_recorded_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "failures").mkdir()
    (tmp_path / "failures" / "rank_00000.json").write_text('{"rank": 0, "exit_code": 6, "reason": "old"}')
    assert run(tmp_path, "speak").returncode == 0


@needs_mpiexec
@pytest.mark.timeout(110)
def test_when_the_parent_is_killed_the_ranks_are_gone_within_seconds(tmp_path: Path) -> None:
    with subprocess.Popen(command(tmp_path, "hang"), env=child_environment()) as parent:
        try:
            assert wait_until((tmp_path / "ranks.json").exists, 60)
            assert len(processes_of(tmp_path)) >= 2
        finally:
            parent.kill()
    assert wait_until(lambda: not processes_of(tmp_path), 5), processes_of(tmp_path)


@needs_mpiexec
@pytest.mark.timeout(110)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_ranks_and_ends_the_run_as_shells_expect(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(command(tmp_path, "hang"), env=child_environment(), stderr=subprocess.DEVNULL) as parent:
        try:
            assert wait_until((tmp_path / "ranks.json").exists, 60)
            parent.send_signal(number)
            assert parent.wait(timeout=15) == code
        finally:
            parent.kill()
    assert wait_until(lambda: not processes_of(tmp_path), 5), processes_of(tmp_path)


def test_without_mpiexec_the_exit_code_is_3_and_the_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mpiexec, "folders", lambda: [tmp_path])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch_module.launch(["true"], 2, tmp_path) == 3
    assert "no mpiexec was found" in capsys.readouterr().err


def test_an_mpiexec_that_is_no_program_is_an_error_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_bytes(b"\x7fnothing")
    fake.chmod(0o755)
    monkeypatch.setattr(mpiexec, "folders", lambda: [tmp_path])
    assert launch_module.launch(["true"], 2, tmp_path) == 3
    assert "cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "vendor"),
    [
        ("HYDRA build details:\\n    Version:   4.2.1", "mpich"),
        ("mpiexec (OpenRTE) 4.1.4", "openmpi"),
        ("mpirun (Open MPI) 5.0.11", "openmpi"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18", "intel"),
        ("something else", "unknown"),
    ],
)
def test_the_launcher_s_family_is_known_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, vendor: str
) -> None:
    fake = tmp_path / "mpiexec"
    fake.write_text(f"#!/bin/sh\nprintf '{said}\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(mpiexec, "folders", lambda: [tmp_path])
    found = mpiexec.find_mpiexec()
    assert found is not None
    assert found.vendor == vendor
    line = found.command(["prog"], 4)
    assert line[-3:] == ["-n", "4", "prog"]
    assert ("--oversubscribe" in line) == (vendor == "openmpi")
    wanted = vendor == "openmpi" and os.geteuid() == 0
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in found.environment()) == wanted
