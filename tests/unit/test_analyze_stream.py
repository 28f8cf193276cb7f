"""A log read a few rows at a time gives what it gives at once; large logs are made by benchmarks/make_log.py."""

import json
from pathlib import Path

import pytest
from make_log import Size, make_log
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import frames, stream, summarize
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import Kind, TimeClass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_log(folder, Size(pipeline=3, data=2, steps=7, tasks=8))
    return folder


@pytest.fixture(scope="module")
def running_ahead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    write_run(folder, Pipeline(4, 6, 1_000, 2_000, steps=9, update=300, latency=lambda *_: 40))
    return folder


def read_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_BATCH_ROWS": 300, "_BLOCK_ROWS": 16, "CHUNK_ROWS": 8, "_LOOK_AHEAD": 4}.items():
        monkeypatch.setattr(stream, name, value)
    monkeypatch.setattr(stream, "_SEARCHED_ROWS", 32)
    monkeypatch.setattr(stream, "_MARGIN_ROWS", 24)


@pytest.mark.parametrize("steps", [None, (2, 5)])
@pytest.mark.parametrize("name", ["made", "running_ahead"])
def test_reading_in_small_parts_changes_no_figure(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, steps: tuple[int, int] | None
) -> None:
    run = open_run(request.getfixturevalue(name))
    whole = summarize(run, steps).to_json()
    read_in_small_parts(monkeypatch)
    parts = summarize(run, steps).to_json()
    assert json.dumps(parts) == json.dumps(whole)


def test_a_made_log_has_the_rows_and_the_accounts_of_the_run_that_it_simulates(made: Path) -> None:
    report = summarize(open_run(made))
    assert report.gaps == ()
    assert report.steps == (0, 6)
    assert len(report.ranks) == 6
    assert report.throughput.tokens_per_step == 4 * 2 * 2048
    for rank in report.ranks:
        assert rank.peak_in_flight == 3 - rank.stage
        assert rank.classes[TimeClass.UPDATE] == 7 * 1_500_000
        # 8 tasks of 4 µs each on top, and as much at the end of the step on the rank that ends it last
        assert rank.classes[TimeClass.RUNTIME] == 7 * 8 * 4_000


def test_rows_far_behind_later_ones_are_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with EventWriter(tmp_path / "rank_00000.h5", header()) as writer:
        for step in range(40):
            for row in range(10):
                at = 1_000 * step + 100 * row
                writer.event(Kind.F, step, row, 0, at, at, at + 90)
            writer.step(step, 1_000 * step, 1_000 * step + 1_000)
        writer.event(Kind.B, 3, 0, 0, 3_990, 3_990, 4_000)
    run = open_run(tmp_path)
    assert summarize(run).gaps == ()
    read_in_small_parts(monkeypatch)
    monkeypatch.setattr(stream, "_BATCH_ROWS", 50)
    report = summarize(run)
    assert "1 rows lie in the log so far behind" in report.gaps[0]
    assert sum(report.classes.values()) == report.wall_ns == 40_000


def test_frames_hold_every_nanosecond_of_a_step_once_with_its_class_and_row(running_ahead: Path) -> None:
    run = open_run(running_ahead)
    report = summarize(run)
    for i, (step, frame) in enumerate(frames(run)):
        assert step == i
        spans = frame.with_columns(ns=frame["t_end"] - frame["t_start"])
        assert spans.group_by("rank").sum()["ns"].to_list() == [int(report.step_times.wall[i])] * 4
        sums = dict(spans.group_by("class").sum().select("class", "ns").iter_rows())
        wanted = {TimeClass(c).name.lower(): int(report.step_classes[i, c]) for c in range(1, len(TimeClass))}
        assert sums == {name: ns for name, ns in wanted.items() if ns}
        assert set(frame.filter(frame["class"] == "forward")["kind"]) == {"F"}
        assert set(frame.filter(frame["class"] == "runtime")["kind"]) <= {""}
    assert i == 8
