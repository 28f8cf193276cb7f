"""Exports: the Chrome trace against its format and the pipeline's closed forms, tables read back by polars."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from jsonschema import validate
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import frames
from hpcpipe.analyze.export import tables, write_tables, write_trace
from hpcpipe.cli.analyze import analyze
from hpcpipe.events import EventWriter, open_run

STAGES, MICROBATCHES, FORWARD, BACKWARD, STEPS = 4, 6, 1_000_000, 2_000_000, 3

METADATA = ("name", "sort_index")
NUMBER = {"type": "number", "minimum": 0}
PLACE = {"pid": {"type": "integer"}, "tid": {"type": "integer"}}
# Events as the Trace Event Format defines them: complete (X), metadata (M), flow start (s) and end (f).
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {**PLACE, "ph": {"const": "X"}, "ts": NUMBER, "dur": NUMBER},
                        "required": ["ph", "pid", "tid", "ts", "dur", "name", "cat"],
                    },
                    {
                        "properties": {
                            **PLACE,
                            "ph": {"const": "M"},
                            "name": {"enum": [f"{what}_{key}" for what in ("process", "thread") for key in METADATA]},
                            "args": {"type": "object", "minProperties": 1},
                        },
                        "required": ["ph", "pid", "tid", "name", "args"],
                    },
                    {
                        "properties": {**PLACE, "ph": {"const": "s"}, "ts": NUMBER, "id": {"type": "integer"}},
                        "required": ["ph", "pid", "tid", "ts", "id", "name", "cat"],
                    },
                    {
                        "properties": {
                            **PLACE,
                            "ph": {"const": "f"},
                            "bp": {"const": "e"},
                            "ts": NUMBER,
                            "id": {"type": "integer"},
                        },
                        "required": ["ph", "bp", "pid", "tid", "ts", "id", "name", "cat"],
                    },
                ]
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    pipeline = Pipeline(STAGES, MICROBATCHES, FORWARD, BACKWARD, steps=STEPS, latency=lambda *_: 40_000)
    write_run(folder, pipeline)
    return folder


@pytest.fixture(scope="module")
def trace(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    write_trace(open_run(run), path)
    return json.loads(path.read_text())


def of_phase(trace: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def test_the_trace_keeps_to_the_format(trace: dict[str, Any]) -> None:
    validate(trace, SCHEMA)


def test_slices_of_a_track_never_overlap(trace: dict[str, Any]) -> None:
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for each in of_phase(trace, "X"):
        tracks.setdefault((each["pid"], each["tid"]), []).append(each)
    assert len(tracks) == 2 * STAGES
    for slices in tracks.values():
        slices.sort(key=lambda each: each["ts"])
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-6 for a, b in pairwise(slices))


def test_every_task_is_a_slice_of_its_length(trace: dict[str, Any]) -> None:
    tasks = [each for each in of_phase(trace, "X") if each["cat"] == "task"]
    for letter, length in (("F", FORWARD), ("B", BACKWARD)):
        found = [each for each in tasks if each["name"].startswith(letter)]
        assert len(found) == STAGES * MICROBATCHES * STEPS
        assert all(each["dur"] == pytest.approx(length / 1e3) for each in found)


def slice_at(trace: dict[str, Any], pid: int, time: float) -> str:
    inside = [
        each["name"]
        for each in of_phase(trace, "X")
        if each["pid"] == pid and each["tid"] == 1 and each["ts"] <= time < each["ts"] + each["dur"]
    ]
    (name,) = inside
    return name


def test_every_message_is_an_arrow_from_the_task_that_made_it_to_the_task_it_feeds(trace: dict[str, Any]) -> None:
    starts = {each["id"]: each for each in of_phase(trace, "s")}
    ends = {each["id"]: each for each in of_phase(trace, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == 2 * (STAGES - 1) * MICROBATCHES * STEPS
    for number, start in starts.items():
        end = ends[number]
        name = slice_at(trace, start["pid"], start["ts"])
        assert name == slice_at(trace, end["pid"], end["ts"])
        assert end["pid"] - start["pid"] == (1 if name.startswith("F") else -1)
        assert end["ts"] - start["ts"] >= 40


def test_a_trace_named_gz_is_compressed(run: Path, tmp_path: Path) -> None:
    write_trace(open_run(run), tmp_path / "t.json.gz", (1, 1))
    with gzip.open(tmp_path / "t.json.gz") as file:
        document = json.load(file)
    assert {each["args"]["step"] for each in of_phase(document, "X") if each["cat"] == "step"} == {1}


def test_tables_hold_every_event_and_every_nanosecond(run: Path, tmp_path: Path) -> None:
    log = open_run(run)
    assert write_tables(log, tmp_path, "parquet") == [
        "pieces.parquet", "events.parquet", "steps.parquet", "decisions.parquet",
    ]  # fmt: skip
    pieces = pl.read_parquet(tmp_path / "pieces*.parquet")
    spent = pieces.group_by("rank").agg((pl.col("t_end") - pl.col("t_start")).sum().alias("ns"))["ns"]
    (wall,) = spent.unique()
    assert wall == sum(frame["t_end"].max() - frame["t_start"].min() for _, frame in frames(log))
    events = pl.read_parquet(tmp_path / "events.parquet")
    assert len(events) == sum(len(rank.rows) for rank in log.ranks)
    ran = events.filter(kind="F").select(pl.col("t_end") - pl.col("t_start"))["t_end"]
    assert ran.unique().to_list() == [FORWARD]
    assert pl.read_parquet(tmp_path / "steps.parquet")["hint"].unique().to_list() == ["1f1b"]


def test_large_tables_come_in_parts_that_one_pattern_reads(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS_A_FILE", 50)
    log = open_run(run)
    patterns = write_tables(log, tmp_path, "csv", (0, 1))
    assert patterns[1] == "events-*.csv"
    assert len(list(tmp_path.glob("events-*.csv"))) > 1
    events = pl.read_csv(tmp_path / "events-*.csv")
    assert events["step"].unique().sort().to_list() == [0, 1]
    assert len(events.filter(kind="B")) == STAGES * MICROBATCHES * 2
    monkeypatch.undo()
    write_tables(log, tmp_path, "csv", (0, 0))
    assert not list(tmp_path.glob("events-*.csv"))


def test_the_command_writes_all_of_them_and_says_so(run: Path, tmp_path: Path) -> None:
    options = ["--perfetto", tmp_path / "t.json", "--parquet", tmp_path / "p", "--csv", tmp_path / "c"]
    result = CliRunner().invoke(analyze, [str(run), *map(str, options)])
    assert result.exit_code == 0, result.stderr
    for written in (tmp_path / "t.json", tmp_path / "p", tmp_path / "c"):
        assert str(written) in result.stdout
        assert written.exists()


@pytest.mark.parametrize("option", ["--perfetto", "--html"])
def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(run: Path, tmp_path: Path, option: str) -> None:
    path = tmp_path / "absent" / "a.json"
    result = CliRunner().invoke(analyze, [str(run), option, str(path)])
    assert result.exit_code == 2
    assert f"{path}: cannot be written: there is no folder {path.parent}" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_log_without_events_has_tables_without_rows(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with EventWriter(tmp_path / "events" / "rank_00000.h5", header()) as writer:
        writer.step(0, 0, 1_000)
    write_tables(open_run(tmp_path), tmp_path / "out", "parquet")
    assert len(pl.read_parquet(tmp_path / "out" / "events.parquet")) == 0
    assert pl.read_parquet(tmp_path / "out" / "pieces.parquet")["t_end"].max() == 1_000
