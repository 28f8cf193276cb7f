"""Runs whose grouping changes while they go on, as a user starts them: what they say of it, and how they end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import hpcpipe
from test_run_command import MPIEXEC

JOB = """
[job]
name = "grouped"
steps = 12
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[batch]
microbatches = 12
[parallel]
pipeline = 2
[schedule]
hint = "kfkb"
dispatch = "fixed"
[device]
kind = "emulated"
forward_ms = 0.1
backward_ms = 0.2
"""
TUNE = """
[tune]
grouping = "on"
memory_limit = "1 MiB"
interval = 2
trial = 2
"""


def test_a_user_sees_what_was_decided_and_why(tmp_path):
    (tmp_path / "job.toml").write_text(JOB + TUNE)
    process = hpcpipe("run", "job.toml", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    run = tmp_path / "runs" / "grouped" / "latest"
    document = json.loads(hpcpipe("analyze", run, "--json", cwd=tmp_path).stdout)
    assert document["decisions"], "after the first steps all groupings are looked at"
    assert {each["what"] for each in document["decisions"]} == {"grouping"}
    assert all(
        each["why"].partition(":")[0] in ("try", "keep", "roll back", "stay", "network")
        for each in document["decisions"]
    )
    assert len(document["per_step"]["k"]) == 12
    text = hpcpipe("analyze", run, cwd=tmp_path).stdout
    assert "what the run decided on the way" in text
    table = text.partition("what the run decided on the way")[2]
    assert any(f"{each['why'].partition(':')[0]}:" in table for each in document["decisions"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_while_it_changes_its_channels_ends_the_run(tmp_path, rank):
    """The other one waits for messages of the new grouping, or is a step behind; it must not wait for ever."""
    (tmp_path / "job.toml").write_text(JOB.replace("steps = 12", "steps = 100000"))
    program = Path(__file__).with_name("regroup_rank.py")
    directory, when = tmp_path / "run", tmp_path / "when"
    directory.mkdir()
    command = [MPIEXEC, "-n", "2", sys.executable, str(program), "job.toml", str(directory), str(rank), "5", str(when)]
    process = subprocess.run(
        command, cwd=tmp_path, env={"OMP_NUM_THREADS": "1", **os.environ}, capture_output=True, timeout=90, check=False
    )
    assert when.read_text() == "dies"
    assert process.returncode != 0
