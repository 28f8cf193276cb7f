"""What EventWriter leaves on disk, seen with h5py and h5dump and not through our own reader."""

import subprocess
import sys
from pathlib import Path
from shutil import which

import h5py
import numpy as np
import pytest
from synthetic_log import header

from hpcpipe.events import EventWriter
from hpcpipe.events.schema import CLOCK, DECISIONS, EVENTS, GROUPS, SCHEMA_VERSION, STEPS
from hpcpipe.events.tables import Clock, Decisions, Events, Steps
from hpcpipe.plan import Kind, TimeClass


def write_rows(writer: EventWriter, count: int, first: int = 0) -> None:
    for i in range(first, first + count):
        writer.event(Kind.F, i // 10, i % 10, 0, i, i + 1, i + 2, rank_in_hint=i, ready_count=3)


def test_a_closed_file_holds_every_column_with_its_unit_and_description(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header(toml="[job]\n")) as writer:
        writer.event(
            Kind.WAIT, 4, 2, 1, -1, 10, 20,
            wait_class=TimeClass.CAP, peer=3, nbytes=5, rank_in_hint=6, ready_count=7, flags=1,
        )  # fmt: skip
        writer.step(4, 1, 2, loss=0.5, grad_norm=0.25, tokens=8, hint="bf", k=2, bucket_bytes=9, peak_bytes=11)
        writer.clock(1, -5, 3)
        writer.decision(4, "k = 2", "fastest of 3")
    with h5py.File(path) as file:
        assert file.attrs["format"] == "hpcpipe-events"
        assert file.attrs["complete"] == 1
        assert file.attrs["job"] == "[job]\n"
        assert list(file.attrs["mesh"]) == [1, 1, 1]
        for name, columns in GROUPS.items():
            assert sorted(file[name]) == sorted(column.name for column in columns)
            for column in columns:
                dataset = file[name][column.name]
                assert dataset.shape == (1,)
                assert dataset.maxshape == (None,)
                assert dataset.attrs["units"] == column.units
                assert dataset.attrs["description"] == column.description
        row = {name: dataset[0] for name, dataset in file["events"].items()}
        assert row == {
            "step": 4, "microbatch": 2, "kind": 12, "chunk": 1, "t_ready": -1, "t_start": 10, "t_end": 20,
            "wait_class": 11, "peer": 3, "bytes": 5, "rank_in_hint": 6, "ready_count": 7, "flags": 1,
        }  # fmt: skip
        assert list(file["events/kind"].attrs["names"])[12] == "WAIT"
        assert list(file["events/wait_class"].attrs["names"])[11] == "cap"
        assert file["steps/loss"][0] == 0.5
        assert file["steps/hint"].asstr()[0] == "bf"
        assert file["decisions/why"].asstr()[0] == "fastest of 3"


def test_the_tables_in_memory_have_the_columns_of_the_file() -> None:
    for table, columns in ((Events, EVENTS), (Steps, STEPS), (Clock, CLOCK), (Decisions, DECISIONS)):
        assert table.column_names() == tuple(column.name for column in columns)


def test_a_file_that_exists_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        write_rows(writer, 3)
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"rank_00000\.h5: it exists already"):
        EventWriter(path, header())
    assert path.read_bytes() == before


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot create the event log .*absent/rank_00000\.h5: No such file"):
        EventWriter(tmp_path / "absent" / "rank_00000.h5", header())


def test_an_unknown_compression_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gzip, lzf, none"):
        EventWriter(tmp_path / "x.h5", header(), compression="zip")


def test_more_events_than_memory_was_made_for_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        write_rows(writer, 20_000)
    with h5py.File(path) as file:
        assert np.array_equal(file["events/t_start"], np.arange(1, 20_001))


@pytest.mark.parametrize("compression", ["gzip", "lzf", "none"])
def test_every_compression_gives_the_same_rows_back(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header(), compression=compression) as writer:
        for batch in range(5):
            write_rows(writer, 100, batch * 100)
            writer.flush()
    with h5py.File(path) as file:
        assert np.array_equal(file["events/t_end"], np.arange(2, 502))
        assert file["events/t_end"].compression == (None if compression == "none" else compression)


def test_a_file_that_was_flushed_often_is_packed_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        for batch in range(40):
            write_rows(writer, 100, batch * 100)
            writer.flush()
        growing = path.stat().st_size
    assert path.stat().st_size < growing / 4
    assert [each.name for each in tmp_path.iterdir()] == ["rank_00000.h5"]


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "rank_00000.h5", header())
    writer.close()
    writer.close()
    writer.flush()


def test_long_texts_are_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header()) as writer:
        writer.decision(0, "é" * 50, "µ" * 500)
    with h5py.File(path) as file:
        assert file["decisions/what"].asstr()[0] == "é" * 32
        assert file["decisions/why"].asstr()[0] == "µ" * 128


def test_a_job_file_longer_than_64_kib_fits_into_the_header(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    text = "# a long comment\n" * 8000
    with EventWriter(path, header(toml=text)):
        pass
    with h5py.File(path) as file:
        assert file.attrs["job"] == text


FULL_DISK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from synthetic_log import header
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import Kind

path = Path(sys.argv[1])
writer = EventWriter(path, header())
writer.event(Kind.F, 0, 0, 0, 1, 1, 2)
writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4096, resource.RLIM_INFINITY))
for i in range(20_000):
    writer.event(Kind.F, 0, i, 0, 1, 1, 2)
for attempt in range(2):
    try:
        writer.flush()
    except OSError as error:
        print(f"refused: {error}")
copy = path.with_name("copy.h5")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
copy.write_bytes(path.read_bytes())
assert len(open_run(copy).ranks[0].events) == 1
writer.close()
assert len(open_run(path).ranks[0].events) == 20_001
print("recovered")
"""


def test_a_full_disk_is_an_oserror_that_names_the_file_and_loses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rank_00000.h5"
    command = [sys.executable, "-c", FULL_DISK, str(path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("refused: ") and "cannot write the event log" in line] == lines[
        :-1
    ]
    assert len(lines) == 3, done.stdout
    assert str(path) in lines[0]
    assert lines[-1] == "recovered"


def test_h5dump_reads_a_closed_file(tmp_path: Path) -> None:
    h5dump = which("h5dump")
    if h5dump is None:
        pytest.skip("h5dump is not installed (package hdf5-tools)")
    path = tmp_path / "rank_00000.h5"
    with EventWriter(path, header(toml="[job]\n")) as writer:
        write_rows(writer, 3)
        writer.step(0, 1, 2)
    command = [h5dump, "-d", "/events/t_start", "-d", "/steps/hint", "-a", "/schema_version", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "(0): 1, 2, 3" in done.stdout
    assert '"bf' in done.stdout
    assert f'"{SCHEMA_VERSION}"' in done.stdout
