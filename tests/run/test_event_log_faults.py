"""A log that cannot be written is said once and at the end; the training goes on, unless the log is required."""

import os
from pathlib import Path

import pytest
from command import EMULATED, hpcpipe

from hpcpipe.events import open_run

LOG_FAULTS = Path(__file__).parent / "log_faults"


def run(folder, fault, *overrides):
    path = os.pathsep.join([str(LOG_FAULTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"HPCPIPE_TEST_LOG_FAULT": fault, "PYTHONPATH": path}
    (folder / "job.toml").write_text(EMULATED)
    sets = ("job.steps=14", "job.hang_timeout=60", "parallel.pipeline=2", *overrides)
    options = [word for override in sets for word in ("--set", override)]
    return hpcpipe("run", "job.toml", "--run-dir", "here", *options, cwd=folder, environment=environment)


def warnings(process):
    return [line for line in process.stderr.splitlines() if line.startswith("hpcpipe: warning: ")]


@pytest.mark.parametrize("aggregate", ["rank", pytest.param("node", marks=pytest.mark.long)])
def test_a_disk_that_fills_is_said_once_and_at_the_end(tmp_path, aggregate):
    process = run(tmp_path, "full:1:5" if aggregate == "rank" else "full:0:5", f'events.aggregate="{aggregate}"')
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    first, last = warnings(process)
    assert "cannot write the event log, the training goes on" in first
    ranks = "1 rank" if aggregate == "rank" else "2 ranks"
    assert f"the event log of {ranks} is missing or incomplete, the training is not affected" in last
    assert "File too large" in last
    if aggregate == "rank":
        assert "step 14/14" in process.stdout
        run_log = open_run(tmp_path / "here")
        assert run_log.ranks[0].complete
        assert len(run_log.ranks[1].steps) >= 1


@pytest.mark.long
def test_a_log_that_vanishes_is_made_anew(tmp_path):
    process = run(tmp_path, "vanish:1:5")
    assert process.returncode == 0, process.stderr
    assert "cannot write the event log" in warnings(process)[0]
    assert len(warnings(process)) == 1
    log = open_run(tmp_path / "here")
    assert [len(rank.steps) for rank in log.ranks] == [14, 14]


@pytest.mark.parametrize("aggregate", ["rank", pytest.param("node", marks=pytest.mark.long)])
def test_a_folder_that_cannot_be_made_leaves_the_training_alone(tmp_path, aggregate):
    process = run(tmp_path, "blocked:0:0", f'events.aggregate="{aggregate}"')
    assert process.returncode == 0, process.stderr
    first, last = warnings(process)
    assert "the event log of 2 ranks is missing or incomplete, the training goes on" in first
    assert "the event log of 2 ranks is missing or incomplete, the training is not affected" in last
    assert "step 14/14" in process.stdout


@pytest.mark.parametrize("fault", ["full:1:5", pytest.param("blocked:0:0", marks=pytest.mark.long)])
def test_a_required_log_that_cannot_be_written_ends_the_run(tmp_path, fault):
    process = run(tmp_path, fault, "events.required=true")
    assert process.returncode == 4, process.stderr
    assert "event log" in process.stderr
    if fault.startswith("blocked"):
        assert "step" not in process.stdout, "nothing was trained"


def test_a_node_has_one_file_and_the_same_rows(tmp_path):
    process = run(tmp_path, "none:0:0", 'events.aggregate="node"')
    assert process.returncode == 0, process.stderr
    assert not warnings(process)
    assert [path.name for path in (tmp_path / "here" / "events").iterdir()] == ["node_00000.h5"]
    log = open_run(tmp_path / "here")
    assert log.gaps == ()
    assert [(rank.rank, rank.header.stage, len(rank.steps)) for rank in log.ranks] == [(0, 0, 14), (1, 1, 14)]
    for rank in log.ranks:
        tasks = rank.events.kind <= 1
        assert tasks.sum() == 14 * 6 * 2


def test_a_rank_of_a_node_that_is_killed_leaves_what_it_handed_over(tmp_path):
    """Rank 1 dies; the launcher kills the rank that writes soon after, maybe before it has written the last steps."""
    process = run(tmp_path, "kill:1:12", 'events.aggregate="node"')
    assert process.returncode == 4, process.stderr
    log = open_run(tmp_path / "here")
    assert not any(rank.complete for rank in log.ranks)
    assert len(log.ranks[1].steps) >= 1
    assert len(log.ranks[1].events) >= 16 * len(log.ranks[1].steps)
