"""Logs that are being written, were killed, are incomplete or are none: what open_run makes of them."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import h5py
import numpy as np
import pytest
from synthetic_log import Pipeline, header, write_run

from hpcpipe.events import EventWriter, LogError, RankLog, open_run
from hpcpipe.plan import Kind

WRITER = """
import sys
from pathlib import Path
from shutil import copytree
sys.path.insert(0, sys.argv[2])
from synthetic_log import header
from hpcpipe.events import EventWriter

writer = EventWriter(Path(sys.argv[1]), header())
print("open", flush=True)
rows = 0
for step in range(int(sys.argv[3])):
    for _ in range(137):
        writer.event(rows % 13, rows % 1000, rows, rows % 7, rows, 2 * rows, 3 * rows, peer=rows % 5, nbytes=4 * rows)
        rows += 1
    writer.step(step, rows, 2 * rows)
    writer.flush()
    print(rows, flush=True)
writer.close()
print("closed", flush=True)
"""


def start_writer(path: Path, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent), str(steps)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def check_rows(log: RankLog) -> int:
    """Check every row of the writer above and return their number."""
    events = log.events
    rows = np.arange(len(events))
    assert np.array_equal(events.kind, rows % 13)
    assert np.array_equal(events.step, rows % 1000)
    assert np.array_equal(events.microbatch, rows)
    assert np.array_equal(events.chunk, rows % 7)
    assert np.array_equal(events.t_start, 2 * rows)
    assert np.array_equal(events.t_end, 3 * rows)
    assert np.array_equal(events.peer, rows % 5)
    assert np.array_equal(events.nbytes, 4 * rows)
    assert np.array_equal(log.steps.t_begin, 137 * np.arange(1, len(log.steps) + 1))
    assert 137 * len(log.steps) <= len(rows) <= 137 * (len(log.steps) + 1)
    return len(rows)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.long)])
def test_a_killed_writer_leaves_everything_up_to_its_last_flush(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    for attempt in range(kills):
        path = tmp_path / f"rank_{attempt:05d}.h5"
        process = start_writer(path, 1_000_000)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 30)):
            process.stdout.readline()
        select_wait(process, chance.uniform(0, 0.004))
        os.kill(process.pid, signal.SIGKILL)
        announced = [int(line) for line in process.stdout.read().split()]
        assert process.wait() == -signal.SIGKILL
        log = open_run(path)
        rows = check_rows(log.ranks[0])
        assert rows >= max(announced, default=0)
        assert any("was not closed" in gap for gap in log.gaps)


def select_wait(process: subprocess.Popen[str], seconds: float) -> None:
    """Let the writer run on for a moment, so that the kill falls anywhere between two flushes."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@pytest.mark.timeout(120)
def test_a_log_is_read_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    process = start_writer(path, 400)
    counts = []
    while process.poll() is None:
        counts.append(check_rows(open_run(path).ranks[0]))
    assert process.stdout is not None
    assert process.stdout.read().endswith("closed\n")
    log = open_run(path)
    assert check_rows(log.ranks[0]) == 400 * 137
    assert log.ranks[0].complete
    assert counts == sorted(counts)
    assert len(set(counts)) > 3


def test_unflushed_rows_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    writer = EventWriter(path, header())
    writer.event(Kind.F, 0, 0, 0, 1, 1, 2)
    writer.flush()
    writer.event(Kind.F, 0, 1, 0, 1, 1, 2)
    copy = tmp_path / "copy.h5"  # one process cannot open a file in two ways
    copy.write_bytes(path.read_bytes())
    assert len(open_run(copy).ranks[0].events) == 1
    writer.close()
    assert len(open_run(path).ranks[0].events) == 2


def test_rows_past_the_flushed_count_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        for i in range(5):
            writer.event(Kind.F, 0, i, 0, 1, 1, 2)
    with h5py.File(path, "r+") as file:
        file["flushed"][0] = 3
    assert open_run(path).ranks[0].events.microbatch.tolist() == [0, 1, 2]


def test_a_run_is_found_by_its_directory_its_events_or_as_the_latest(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo" / "20260101"
    write_run(run, Pipeline(2, 2, 10, 20))
    (tmp_path / "runs" / "demo" / "latest").symlink_to("20260101")
    for path in (run, run / "events", tmp_path / "runs" / "demo" / "latest", tmp_path / "runs" / "demo"):
        log = open_run(path)
        assert [rank.rank for rank in log.ranks] == [0, 1]
        assert log.gaps == ()


def test_a_missing_rank_is_a_gap(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(4, 4, 10, 20))
    (tmp_path / "events" / "rank_00002.h5").unlink()
    log = open_run(tmp_path)
    assert [rank.rank for rank in log.ranks] == [0, 1, 3]
    assert any("rank 2 of 4 missing" in gap for gap in log.gaps)
    last = log.ranks[2].events
    assert set(last.t_ready[(last.kind == Kind.RECV)].tolist()) == {-1}


def test_a_killed_rank_is_told_with_the_step_at_which_its_log_ends(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    for rank in range(8):
        writer = EventWriter(events / f"rank_{rank:05d}.h5", header(rank=rank, world_size=8))
        writer.clock(0, 0, 1)
        for step in range(42 if rank == 7 else 43):
            writer.step(step, step * 10, step * 10 + 9)
        if rank == 7:
            writer.flush()
        else:
            writer.close()
    copytree(events, tmp_path / "copy")  # one process cannot open a file in two ways
    (gap,) = open_run(tmp_path / "copy").gaps
    assert gap == "rank 7: log ends at step 41, others reach 42 and was not closed (still running, or killed?)"


def test_missing_clock_samples_are_a_gap(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(3, 2, 10, 20, clock_samples=False))
    assert open_run(tmp_path).gaps == ("ranks 1-2: no clock samples, taken as rank 0's clock",)


def test_a_log_that_ends_early_though_it_was_closed_is_a_gap(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    for rank, steps in enumerate((5, 3)):
        with EventWriter(events / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2)) as writer:
            writer.clock(0, 0, 1)
            for step in range(steps):
                writer.step(step, step * 10, step * 10 + 9)
    assert open_run(tmp_path).gaps == ("rank 1: log ends before step 4, which others reach",)


def test_one_unreadable_file_among_others_is_left_out_and_said(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 2, 10, 20))
    (tmp_path / "events" / "rank_00001.h5").write_bytes(b"")
    log = open_run(tmp_path)
    assert [rank.rank for rank in log.ranks] == [0]
    assert "rank_00001.h5: an empty file" in log.gaps[0]


def make_text(path: Path) -> None:
    path.write_text("step,loss\n")


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_other_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = 1


def make_newer(path: Path) -> None:
    EventWriter(path, header()).close()
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = "2.0.0"


def make_truncated(path: Path) -> None:
    EventWriter(path, header()).close()
    path.write_bytes(path.read_bytes()[:600])


def make_odd_attribute(path: Path) -> None:
    EventWriter(path, header()).close()
    with h5py.File(path, "r+") as file:
        file.attrs["mesh"] = 3.5


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_text, "not an HDF5 file"),
        (make_empty, "an empty file"),
        (make_other_hdf5, "not an event log"),
        (make_newer, r"written in format 2\.0\.0; this hpcpipe reads up to 1\.x"),
        (make_truncated, "damaged"),
        (make_odd_attribute, "damaged"),
    ],
)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path: Path, make: object, words: str) -> None:
    path = tmp_path / "rank_00000.h5"
    assert callable(make)
    make(path)
    with pytest.raises(LogError, match=words):
        open_run(path)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.95])
def test_a_cut_off_copy_of_a_growing_log_is_refused_and_never_waited_for(tmp_path: Path, part: float) -> None:
    writer = EventWriter(tmp_path / "rank_00000.h5", header())
    for i in range(20_000):
        writer.event(Kind.F, 0, i, 0, 1, 2, 3)
    writer.flush()
    whole = (tmp_path / "rank_00000.h5").read_bytes()
    copy = tmp_path / "copy.h5"
    copy.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(LogError, match="damaged"):
        open_run(copy)
    copy.write_bytes(whole)
    assert len(open_run(copy).ranks[0].events) == 20_000


def test_a_newer_minor_version_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    EventWriter(path, header()).close()
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = "1.7.0"
        file["events/new_column"] = [1, 2]
    assert open_run(path).ranks[0].rank == 0


def test_a_file_of_format_1_0_is_read(tmp_path: Path) -> None:
    """It has neither `ranks` nor a layout, and nothing about how the ring fared."""
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        for i in range(10):
            writer.event(Kind.F, 0, i, 0, i, i + 1, i + 2)
        writer.clock(0, 0, 1)
        writer.step(0, 0, 20, loss=2.0, hint="1f1b")
    with h5py.File(path, "r+") as file:
        del file["ranks"]
        for name in ("layout", "blocked", "blocked_ns", "lost"):
            del file.attrs[name]
        file.attrs["schema_version"] = "1.0.0"
    log = open_run(path)
    (rank,) = log.ranks
    assert (log.gaps, rank.complete, rank.lost, rank.blocked) == ((), True, 0, 0)
    assert rank.events.microbatch.tolist() == list(range(10))
    assert rank.rows.read(["t_end"], 2, 4)["t_end"].tolist() == [4, 5]
    assert (rank.steps.loss.tolist(), rank.steps.hint.tolist()) == ([2.0], ["1f1b"])


def test_a_run_that_does_not_exist_names_the_ones_that_do(tmp_path: Path) -> None:
    (tmp_path / "20260101").mkdir()
    with pytest.raises(LogError, match=r"no such run; .* holds 20260101"):
        open_run(tmp_path / "20260102")


def test_a_directory_without_a_log_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"expected events/rank_00000\.h5"):
        open_run(tmp_path)


def test_files_of_two_runs_are_not_merged(tmp_path: Path) -> None:
    EventWriter(tmp_path / "rank_00000.h5", header(rank=0, world_size=2)).close()
    EventWriter(tmp_path / "rank_00001.h5", header(rank=1, world_size=2, job_sha256="1" * 64)).close()
    with pytest.raises(LogError, match="belongs to another run"):
        open_run(tmp_path)


def test_two_files_of_one_rank_are_not_merged(tmp_path: Path) -> None:
    EventWriter(tmp_path / "rank_00000.h5", header()).close()
    EventWriter(tmp_path / "rank_00001.h5", header()).close()
    with pytest.raises(LogError, match="2 files of rank 0"):
        open_run(tmp_path)


@pytest.mark.parametrize("closed", ["events", "."])
def test_a_folder_that_may_not_be_read_is_named(closed: str) -> None:
    """Root may read all, so it becomes nobody; above tmp_path nobody else may look."""
    as_root = os.geteuid() == 0
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        run = Path(folder) / "run"
        write_run(run, Pipeline(stages=2, microbatches=2, forward=10, backward=20, order="gpipe", steps=2))
        (run / closed).chmod(0)
        if as_root:
            os.seteuid(65534)
        try:
            with pytest.raises(LogError, match=f"{run / closed}: cannot be read: Permission denied"):
                open_run(run)
        finally:
            if as_root:
                os.seteuid(0)
            (run / closed).chmod(0o755)
