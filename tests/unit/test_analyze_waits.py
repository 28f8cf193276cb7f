"""Waits by cause, and runs that ended too early: what can be said is said, what is missing is named."""

from pathlib import Path
from shutil import copytree

import pytest
from rich.console import Console
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import AnalysisError, Report, render_text, summarize
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import Kind, TimeClass


def test_a_wait_names_the_peer_the_message_and_the_task_that_ran_next(tmp_path: Path) -> None:
    def latency(kind: Kind, stage: int, microbatch: int) -> int:
        return 700 if (kind, stage, microbatch) == (Kind.B, 0, 1) else 0

    write_run(tmp_path, Pipeline(2, 2, 1_000, 2_000, latency=latency))
    report = summarize(open_run(tmp_path))
    # rank 0: F0 -1000, F1 -2000, B0 of rank 1 comes at 4000, its B1 is sent at 7000 and noticed at 7700
    first, second = report.longest_waits
    assert (first.rank, first.cause, first.message, first.peer, first.task) == (0, "dependency", "B0", 1, "B0")
    assert (first.ns, first.transfer_ns) == (2_000, 0)
    assert (second.rank, second.step, second.message, second.task) == (0, 0, "B1", "B1")
    assert (second.ns, second.transfer_ns, second.t_end - second.sent) == (1_700, 700, 700)
    assert report.waited_for == {(0, 1, TimeClass.DEPENDENCY): 3_000, (0, 1, TimeClass.TRANSFER): 700}


def test_a_wait_for_a_collective_names_its_bucket(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "rank_00000.h5", header()) as writer:
        writer.event(Kind.B, 0, 0, 0, 0, 0, 10)
        writer.event(Kind.RS, 0, 0, 0, 10, 10, 20)
        writer.event(Kind.RS, 0, 1, 0, 10, 10, 29)
        writer.event(Kind.WAIT, 0, -1, 0, -1, 12, 30, wait_class=TimeClass.EXPOSED_COMM)
        writer.event(Kind.UPDATE, 0, 0, 0, 30, 30, 40)
        writer.step(0, 0, 40)
    (wait,) = summarize(open_run(tmp_path)).longest_waits
    assert (wait.collective, wait.message, wait.peer, wait.task) == ("reduce-scatter of bucket 1", "", -1, "update")


def test_only_the_longest_waits_are_kept_longest_first(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "rank_00000.h5", header()) as writer:
        at = 0
        for i in range(40):
            length = 1 + (i * 17) % 40
            writer.event(Kind.WAIT, 0, -1, 0, -1, at, at + length, wait_class=TimeClass.CAP)
            at += length
        writer.step(0, 0, at)
    assert [wait.ns for wait in summarize(open_run(tmp_path)).longest_waits] == list(range(40, 30, -1))


def stopped(folder: Path, ranks: int) -> Path:
    """Write the log of a run that failed in its first step: rank 1's last row ends at 50, rank 0's at 90."""
    for rank in range(ranks):
        writer = EventWriter(folder / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2))
        writer.clock(0, 0, 1)
        writer.event(Kind.F, 0, 0, 0, 10 * rank, 10 * rank, 50)
        if rank == 0:
            writer.event(Kind.WAIT, 0, -1, 0, -1, 50, 80, wait_class=TimeClass.DEPENDENCY)
            writer.event(Kind.F, 0, 1, 0, 80, 80, 90)
        writer.flush()
    copytree(folder, folder / "copy" / "events", ignore=lambda *_: ["copy"])  # one process opens a file in one way
    return folder / "copy"


def test_a_run_that_failed_in_its_first_step_is_analysed_up_to_its_last_row(tmp_path: Path) -> None:
    report = summarize(open_run(stopped(tmp_path, 2)))
    assert not report.finished
    assert (report.steps, report.wall_ns) == ((0, 0), 90)
    classes = [{each: ns for each, ns in rank.classes.items() if ns} for rank in report.ranks]
    assert classes == [
        {TimeClass.FORWARD: 60, TimeClass.DEPENDENCY: 30},
        {TimeClass.FORWARD: 40, TimeClass.RUNTIME: 10 + 40},
    ]
    assert sum(entry.length for entry in report.critical_path) == 90
    assert any("no step was finished by all ranks" in gap for gap in report.gaps)
    assert any("rank 0: log ends before its first step and was not closed" in gap for gap in report.gaps)
    with pytest.raises(AnalysisError, match="no step in 3:; no step was finished, begun were 0 to 0"):
        summarize(open_run(tmp_path / "copy"), (3, None))


def test_ranks_that_share_no_finished_step_are_analysed_from_what_they_began(tmp_path: Path) -> None:
    for rank, step in enumerate((0, 1)):
        with EventWriter(tmp_path / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2)) as writer:
            writer.clock(0, 0, 1)
            writer.event(Kind.F, step, 0, 0, 0, 100 * step, 100 * step + 90)
            writer.step(step, 100 * step, 100 * step + 100)
    report = summarize(open_run(tmp_path))
    assert (report.steps, report.finished, report.wall_ns) == ((0, 1), False, 190)


def test_a_log_without_any_task_is_refused(tmp_path: Path) -> None:
    EventWriter(tmp_path / "rank_00000.h5", header()).close()
    with pytest.raises(AnalysisError, match="no rank has finished a step yet, and no task is in the log"):
        summarize(open_run(tmp_path))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("large")
    write_run(folder, Pipeline(40, 4, 1_000_000, 2_000_000, steps=12, latency=lambda *_: 40_000))
    return summarize(open_run(folder))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_report_of_many_ranks_and_steps_fits_its_width(large: Report, tmp_path: Path, width: int) -> None:
    console = Console(width=width, record=True, file=(tmp_path / "out").open("w"))
    console.print(render_text(large))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for heading in ("over time", "critical path", "longest waits", "by kind", "by edge"):
        assert heading in text
