"""`hpcpipe tune` without ranks: what it refuses, what it prints, and what it writes. Runs are virtual here."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from job_text import write_job
from virtual_training import Training

from hpcpipe.cli import main
from hpcpipe.job import Job, load_job
from hpcpipe.tune import Grouping, Report, read_rows

JOB = """\
# shared links
[job]
name = "shared"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 10 # of two samples
backward_ms = 20
message_bytes = 2048
[parallel]
pipeline = 4
[batch]
microbatches = 8
microbatch_size = 2
[schedule]
hint = "1f1b"
dispatch = "fixed"
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Grouping]:
    """Let runs be virtual: 5 and 10 ms a sample, 12 ms a message; return what ran."""
    training = Training(stages=4, batch=16, forward_ms=5.0, sizes=None, delay=lambda *_: 12.0)
    groupings: list[Grouping] = []

    def run_once(job: Job, grouping: Grouping, folder: Path, *, steps: int, warm_up: int) -> list[Report]:
        del folder, warm_up
        assert (job.schedule.hint, job.batch.microbatch_size) == ("kfkb", 2)
        groupings.append(grouping)
        compiled, result = training.truth(0, grouping)
        reports = [read_rows(training._measure(compiled, result), stages=4) for _ in range(steps)]
        return [report for report in reports if report is not None]

    monkeypatch.setattr("hpcpipe.cli.tune_run.run_once", run_once)
    return groupings


def tune(path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["tune", str(path), *words])


def test_the_best_grouping_is_printed_and_written_into_a_copy_that_loads(tmp_path: Path, ran: list[Grouping]) -> None:
    path = write_job(tmp_path, JOB, corpus=None)
    result = tune(path, "--write", "--memory-limit", "64 KiB")
    assert result.exit_code == 0, result.output
    assert ran[0] == Grouping(1, 2)
    assert "shared: 16 samples a step on 4 stages, at most 64.00 KiB a rank" in result.stdout
    assert path.read_text() == JOB
    copy = tmp_path / "small.tuned.toml"
    job = load_job(copy)
    assert f"best: k = {job.schedule.k}, b = {job.batch.microbatch_size}, " in result.stdout
    assert job.schedule.hint == "kfkb"
    assert job.schedule.k * job.batch.microbatch_size > 2
    assert job.batch.microbatches * job.batch.microbatch_size == 16
    assert copy.read_text().startswith("# shared links\n")
    assert "# of two samples" in copy.read_text()
    assert job.tune.memory_limit == "64 KiB"


def test_a_copy_that_is_there_is_left_alone_before_anything_runs(tmp_path: Path, ran: list[Grouping]) -> None:
    path = write_job(tmp_path, JOB, corpus=None)
    (tmp_path / "mine.toml").write_text("mine")
    result = tune(path, "--output", str(tmp_path / "mine.toml"))
    assert result.exit_code == 2
    assert "mine.toml is there already; choose another --output, or --force" in result.stderr
    assert not ran
    assert tune(path, "--output", str(tmp_path / "mine.toml"), "--force").exit_code == 0
    assert load_job(tmp_path / "mine.toml").schedule.hint == "kfkb"


def test_a_copy_elsewhere_would_lose_its_relative_paths_and_is_refused(tmp_path: Path, ran: list[Grouping]) -> None:
    path = write_job(tmp_path, JOB, corpus=None)
    result = tune(path, "--output", str(tmp_path / "sub" / "x.toml"))
    assert result.exit_code == 2
    assert "paths in a job start at its folder" in result.stderr
    assert not ran


def test_the_document_has_every_candidate_with_memory_by_stage_and_every_reason(
    tmp_path: Path, ran: list[Grouping]
) -> None:
    path = write_job(tmp_path, JOB, corpus=None)
    result = tune(path, "--json", "--memory-limit", "16 KiB")
    document = json.loads(result.stdout)
    assert (document["format"], document["batch"], document["memory_limit"]) == ("hpcpipe-tune", 16, 16384)
    for each in document["candidates"]:
        expected = [min(each["microbatches"], each["k"] * (4 - stage)) for stage in range(4)]
        assert each["in_flight"] == expected
        assert each["peak_bytes"] == [held * each["microbatch_size"] * 1024 for held in expected]
        assert max(each["peak_bytes"]) <= 16384
    measured = [each for each in document["candidates"] if each["measured_ns"] is not None]
    fastest = min(each["measured_ns"] for each in measured)
    assert document["best"]["measured_ns"] <= 1.01 * fastest
    assert {(each["k"], each["microbatch_size"]) for each in measured} == {(g.k, g.microbatch_size) for g in ran}
    assert all(each["reason"] for each in document["pruned"])
    assert document["written"] is None


def test_reasons_are_given_when_they_are_asked_for(tmp_path: Path, ran: list[Grouping]) -> None:
    path = write_job(tmp_path, JOB, corpus=None)
    asked = (), ("--why",), ("--why", "--all")
    plain, some, every = (tune(path, "--memory-limit", "8 KiB", *words).stdout for words in asked)
    over = "k = 2, b = 2: memory: 16.00 KiB on stage 0, 8.00 KiB over the limit"
    uneven = "k = 1, b = 3: does not divide: 16 samples are no multiple of 3"
    assert "--why says why" in plain
    assert over not in plain
    assert over in some
    assert uneven not in some
    assert "--all names them" in some
    assert over in every
    assert uneven in every


def test_only_k_keeps_the_micro_batches(tmp_path: Path, ran: list[Grouping]) -> None:
    assert tune(write_job(tmp_path, JOB, corpus=None), "--only-k").exit_code == 0
    assert {grouping.microbatch_size for grouping in ran} == {2}
    assert {grouping.k for grouping in ran} > {1}


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_candidates_are_drawn(tmp_path: Path, ran: list[Grouping], suffix: str) -> None:
    picture = tmp_path / f"tuned.{suffix}"
    result = tune(write_job(tmp_path, JOB, corpus=None), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        assert b"k = 1, b = 2" in content
        assert b"ms a step" in content


def test_a_picture_of_another_kind_is_refused(tmp_path: Path, ran: list[Grouping]) -> None:
    result = tune(write_job(tmp_path, JOB, corpus=None), "--plot", str(tmp_path / "tuned.pdf"))
    assert result.exit_code == 2
    assert "cannot draw a .pdf; use .png or .svg" in result.stderr
    assert not ran


def test_a_limit_that_nothing_fits_is_refused_with_what_is_missing_and_where(
    tmp_path: Path, ran: list[Grouping]
) -> None:
    result = tune(write_job(tmp_path, JOB, corpus=None), "--memory-limit", "3 KiB")
    assert result.exit_code == 2
    assert "even k = 1, b = 1 needs 1.00 KiB more on stage 0" in result.stderr
    assert "raise the memory limit" in result.stderr
    assert not ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory-limit", "many"], 'must be "none" or a size in bytes'),
        (["--set", "parallel.chunks=2"], "chunks = 2, but hint"),
        (["--set", "schedule.in_flight=0"], "must be at least 1"),
    ],
)
def test_a_job_that_is_wrong_is_refused_with_all_its_faults(
    tmp_path: Path, ran: list[Grouping], words: list[str], said: str
) -> None:
    result = tune(write_job(tmp_path, JOB, corpus=None), *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not ran


def test_a_job_that_groups_while_it_runs_is_tuned_as_well(tmp_path: Path, ran: list[Grouping]) -> None:
    text = JOB.replace('"1f1b"', '"kfkb"') + '[tune]\ngrouping = "on"\nmemory_limit = "1 MiB"\ninterval = 9\n'
    path = write_job(tmp_path, text, corpus=None)
    result = tune(path, "--write")
    assert result.exit_code == 0, result.output
    assert load_job(tmp_path / "small.tuned.toml").tune.grouping == "on"


def test_under_a_launcher_it_says_that_it_starts_the_ranks_itself(
    tmp_path: Path, ran: list[Grouping], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "4")
    result = tune(write_job(tmp_path, JOB, corpus=None))
    assert result.exit_code == 2
    assert "starts the job's ranks by itself" in result.stderr
    assert not ran
