"""Disks that are full, directories that cannot be written, files that vanish, ranks that are killed: the log copes."""

import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from no_locks import failing_flock
from synthetic_log import header

from hpcpipe.events import EventWriter, open_run
from hpcpipe.events.log_file import LogFile
from hpcpipe.events.ring import ring_bytes
from hpcpipe.plan import Kind

NOBODY = 65534
MOUNT, UMOUNT = shutil.which("mount"), shutil.which("umount")


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own in `folder`; skips where this may not be done."""
    if MOUNT is None or UMOUNT is None:
        pytest.skip("there is no mount here")
    done = subprocess.run([MOUNT, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("file systems may not be mounted here")
    try:
        yield
    finally:
        subprocess.run([UMOUNT, "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


def python(code: str, *arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(Path(__file__).parent), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done  # type: ignore[no-any-return]


def record(writer: EventWriter, first: int, count: int) -> None:
    for i in range(first, first + count):
        writer.event(Kind.F, 0, i, 0, 1, i, 2)


def test_on_a_full_disk_events_never_block_and_the_missing_ones_are_counted(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=1m"):
        path, ballast = tmp_path / "rank_00000.h5", tmp_path / "ballast"
        writer = EventWriter(path, header(), event_rows=4096)
        record(writer, 0, 1000)
        writer.flush()
        fill(ballast)
        record(writer, 1000, 20_000)
        with pytest.raises(OSError, match=r"cannot write the event log .*rank_00000\.h5: No space left"):
            writer.flush()
        record(writer, 21_000, 1000)
        assert writer.fault is not None
        lost = writer.lost
        assert lost > 1000
        ballast.unlink()
        writer.flush()
        assert writer.fault is None
        record(writer, 22_000, 10)
        writer.close()
        log = open_run(path)
        (rank,) = log.ranks
        assert rank.lost == lost
        assert len(rank.events) + lost == 22_010
        kept = rank.events.microbatch
        assert np.all(np.diff(kept) > 0)
        assert kept[-10:].tolist() == list(range(22_000, 22_010))
        assert kept[:1000].tolist() == list(range(1000))
        assert any(f"rank 0: {lost} rows are missing" in gap for gap in log.gaps)


ABANDONED = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from synthetic_log import header
from hpcpipe.events import EventWriter
writer = EventWriter(sys.argv[2], header(), event_rows=4096)
writer.event(0, 0, 0, 0, 1, 1, 2)
writer.flush()
if sys.argv[3] == "limit":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, resource.RLIM_INFINITY))
else:
    try:
        with open(sys.argv[3], "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        pass
for i in range(20_000):
    writer.event(0, 0, i, 0, 1, i, 2)
try:
    writer.close()
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("limited", [True, False])
def test_a_process_ends_in_peace_though_its_log_could_never_be_written(tmp_path: Path, limited: bool) -> None:
    """HDF5 by itself would try again when the process ends, and crash over it."""
    path = tmp_path / "rank_00000.h5"
    if limited:
        done = python(ABANDONED, path, "limit")
        assert "File too large" in done.stdout
    else:
        with mounted(tmp_path, "size=1m"):
            done = python(ABANDONED, path, tmp_path / "ballast")
            assert "No space left" in done.stdout
            assert len(open_run(path).ranks[0].events) >= 1
    assert done.stderr == ""


def test_a_log_that_cannot_be_packed_stays_and_is_complete(tmp_path: Path) -> None:
    with mounted(tmp_path, "size=1m"):
        path = tmp_path / "rank_00000.h5"
        writer = EventWriter(path, header())
        record(writer, 0, 5000)
        writer.flush()
        fill(tmp_path / "ballast")
        with pytest.raises(OSError, match="cannot pack the event log"):
            writer.close()
        log = open_run(path)
        assert log.ranks[0].complete
        assert len(log.ranks[0].events) == 5000
        assert sorted(each.name for each in tmp_path.iterdir()) == ["ballast", "rank_00000.h5"]


def test_a_read_only_file_system_is_named(tmp_path: Path) -> None:
    with mounted(tmp_path, "ro"), pytest.raises(OSError, match="Read-only file system"):
        EventWriter(tmp_path / "rank_00000.h5", header())


DENIED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from synthetic_log import header
from hpcpipe.events import EventWriter
os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))
try:
    EventWriter(sys.argv[2] + "/rank_00000.h5", header())
except PermissionError as error:
    print(error)
"""


def test_a_directory_without_rights_is_named(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become somebody without rights")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o755)
    for each in (*tmp_path.parents[:2], tmp_path):
        each.chmod(0o755)
    done = python(DENIED, folder, NOBODY)
    assert "cannot create the event log" in done.stdout
    assert "Permission denied" in done.stdout


def test_a_file_that_vanishes_is_noticed_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    writer = EventWriter(path, header())
    record(writer, 0, 100)
    writer.flush()
    path.unlink()
    record(writer, 100, 100)
    writer.flush()
    assert writer.fault is not None
    assert "has vanished" in str(writer.fault)
    writer.close()
    assert open_run(path).ranks[0].events.microbatch.tolist() == list(range(200))


def test_a_directory_that_vanishes_is_a_fault_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "events" / "rank_00000.h5"
    path.parent.mkdir()
    writer = EventWriter(path, header())
    record(writer, 0, 100)
    shutil.rmtree(path.parent)
    with pytest.raises(OSError, match="No such file"):
        writer.close()


def test_a_full_ring_waits_for_the_file_and_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, append = threading.Event(), LogFile.append

    def slow(self: LogFile, *arguments: object) -> float:
        opened.wait(60)
        return append(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LogFile, "append", slow)
    path = tmp_path / "rank_00000.h5"
    writer = EventWriter(path, header(), event_rows=1024)
    recording = threading.Thread(target=record, args=(writer, 0, 5000))
    recording.start()
    words = writer._words
    while not words[4]:  # until it waits
        assert recording.is_alive()
    assert recording.is_alive()
    opened.set()
    recording.join(60)
    writer.close()
    log = open_run(path)
    assert log.ranks[0].events.microbatch.tolist() == list(range(5000))
    assert (log.ranks[0].blocked > 0, log.ranks[0].blocked_ns > 0, log.ranks[0].lost) == (True, True, 0)
    assert any("for the event log" in gap for gap in log.gaps)
    with h5py.File(path) as file:
        assert file.attrs["blocked"] == log.ranks[0].blocked
        assert file.attrs["blocked_ns"] == log.ranks[0].blocked_ns


@pytest.mark.parametrize(("held", "rest"), [(0.002, 0.05), (10.0, 2.0)])
def test_writes_that_take_more_than_their_share_of_the_time_are_made_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: float, rest: float
) -> None:
    append = LogFile.append

    def timed(self: LogFile, *arguments: object) -> float:
        append(self, *arguments)  # type: ignore[arg-type]
        return held

    monkeypatch.setattr(LogFile, "append", timed)
    with EventWriter(tmp_path / "rank_00000.h5", header()) as writer:
        record(writer, 0, 10)
        writer.flush()
        collector = writer._collector
        assert collector is not None
        assert collector._rest == pytest.approx(rest)


def test_small_rows_wait_for_room_too_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        for i in range(3000):
            writer.clock(i, 2 * i, 3)
            writer.decision(i, f"what {i}", "why")
    with h5py.File(path) as file:
        assert file["clock/offset"][()].tolist() == [2 * i for i in range(3000)]
        assert file["decisions/what"].asstr()[()].tolist() == [f"what {i}" for i in range(3000)]


MEMBER = """
import mmap, sys
sys.path.insert(0, sys.argv[1])
from synthetic_log import header
from hpcpipe.events import EventWriter
from hpcpipe.events.ring import ring_bytes
with open(sys.argv[3], "r+b") as file:
    memory = memoryview(mmap.mmap(file.fileno(), 0))
size, rows = ring_bytes(4096), 0
headers = [header(rank=rank, world_size=2) for rank in range(2)]
writer = EventWriter.on_node(sys.argv[2], headers, [memory[:size], memory[size:]], own=1, event_rows=4096)
print("open", flush=True)
for step in range(1_000_000):
    for _ in range(137):
        writer.event(rows % 13, step, rows, 0, rows, 2 * rows, 3 * rows)
        rows += 1
    writer.step(step, rows, rows)
    print(rows, flush=True)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [5, pytest.param(60, marks=pytest.mark.long)])
def test_what_a_killed_rank_of_a_node_handed_over_is_written(tmp_path: Path, kills: int) -> None:
    """Another process, real shared memory, SIGKILL at any moment; not even a flush was asked for."""
    chance, size = random.Random(kills), ring_bytes(4096)
    for attempt in range(kills):
        shared, path = tmp_path / f"shared_{attempt}", tmp_path / f"node_{attempt:05d}.h5"
        shared.write_bytes(bytes(2 * size))
        with shared.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        headers = [header(rank=rank, world_size=2) for rank in range(2)]
        writer = EventWriter.on_node(path, headers, [memory[:size], memory[size:]], own=0, event_rows=4096)
        command = [sys.executable, "-c", MEMBER, str(Path(__file__).parent), str(path), str(shared)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 60)):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        announced = [int(line) for line in process.stdout.read().split()]
        process.wait()
        writer.close()
        own, dead = open_run(path).ranks
        rows = np.arange(len(dead.events))
        assert len(rows) >= max(announced, default=0)
        assert np.array_equal(dead.events.microbatch, rows)
        assert np.array_equal(dead.events.kind, rows % 13)
        assert np.array_equal(dead.events.t_end, 3 * rows)
        assert not dead.complete
        assert own.complete


LOCKED = """
import sys
sys.path.insert(0, sys.argv[1])
from synthetic_log import header
from hpcpipe.events import EventWriter, open_run
try:
    writer = EventWriter(sys.argv[2], header())
    for i in range(500):
        writer.event(0, 0, i, 0, 1, i, 2)
        writer.flush() if i % 100 == 0 else None
    writer.close()
    print(len(open_run(sys.argv[2]).ranks[0].events))
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def no_locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose flock fails as that of a file system without locks."""
    return failing_flock(tmp_path_factory.mktemp("flock"))


@pytest.mark.parametrize("number", [524, 37, 95, 38])
def test_where_files_cannot_be_locked_the_log_is_written_without_locks(
    tmp_path: Path, no_locks: Path, number: int
) -> None:
    """ENOTSUPP, ENOLCK, EOPNOTSUPP, ENOSYS: Lustre without -o flock, NFS without lockd, GPFS (openPMD-api 1106)."""
    environment = {**os.environ, "LD_PRELOAD": str(no_locks), "FLOCK_ERRNO": str(number)}
    environment.pop("HDF5_USE_FILE_LOCKING", None)
    assert python(LOCKED, tmp_path / "rank_00000.h5", env=environment).stdout == "500\n"


def test_where_the_user_insists_on_locks_the_message_says_how_to_stop(tmp_path: Path, no_locks: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(no_locks), "FLOCK_ERRNO": "524", "HDF5_USE_FILE_LOCKING": "TRUE"}
    said = python(LOCKED, tmp_path / "rank_00000.h5", env=environment).stdout
    assert "the file system cannot lock files (errno 524): export HDF5_USE_FILE_LOCKING=FALSE" in said
