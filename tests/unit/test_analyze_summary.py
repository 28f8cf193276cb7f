"""Efficiencies, critical path and gaps against values known by hand."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_log import Pipeline, header, write_run

from hpcpipe.analyze import AnalysisError, Report, summarize
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import Kind, TimeClass


def report_of(folder: Path, pipeline: Pipeline, steps: tuple[int | None, int | None] | None = None) -> Report:
    write_run(folder, pipeline)
    return summarize(open_run(folder), steps)


def test_without_a_network_the_transfer_efficiency_is_one(tmp_path: Path) -> None:
    values = report_of(tmp_path, Pipeline(4, 8, 1_000, 2_000)).efficiency
    assert values.transfer == 1.0
    assert values.load_balance == 1.0
    assert values.parallel == values.serialization == pytest.approx(8 / 11)


def test_the_ideal_run_is_the_one_with_no_latency(tmp_path: Path) -> None:
    late = report_of(tmp_path, Pipeline(3, 6, 1_000, 2_000, latency=lambda *_: 250))
    assert late.wall_ns > 8 * 3_000
    assert late.efficiency.transfer == pytest.approx(8 * 3_000 / late.wall_ns)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_efficiencies_multiply(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    draw = data.draw
    stages, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    durations: dict[tuple[object, ...], int] = {}
    pipeline = Pipeline(
        stages, microbatches, 0, 0, draw(st.sampled_from(["gpipe", "1f1b"])), steps=2, update=draw(st.integers(0, 50)),
        duration=lambda *key: durations.setdefault(key, draw(st.integers(1, 500))),
        latency=lambda *key: durations.setdefault(key, draw(st.integers(0, 300))),
    )  # fmt: skip
    report = report_of(tmp_path_factory.mktemp("run"), pipeline)
    values = report.efficiency
    assert math.isclose(values.parallel, values.load_balance * values.communication)
    assert math.isclose(values.communication, values.serialization * values.transfer)
    assert math.isclose(values.parallel, 1 - report.bubble_ratio)
    assert all(0 < each <= 1 for each in (values.load_balance, values.serialization, values.transfer))
    check_path(report)


def check_path(report: Report) -> None:
    path = report.critical_path
    assert sum(entry.length for entry in path) == report.wall_ns
    assert all(entry.length > 0 for entry in path)
    assert all(one.t_end == two.t_start for one, two in pairwise(path))


def test_the_critical_path_of_two_stages_is_the_one_drawn_by_hand(tmp_path: Path) -> None:
    def latency(kind: Kind, stage: int, microbatch: int) -> int:
        return 300 if (kind, stage, microbatch) == (Kind.F, 1, 0) else 0

    report = report_of(tmp_path, Pipeline(2, 2, 1_000, 2_000, latency=latency))
    check_path(report)
    names = [(entry.rank, entry.kind, entry.microbatch, entry.length, entry.via) for entry in report.critical_path]
    assert names == [
        (0, "F", 0, 1_000, "begin"),
        (1, "transfer", 0, 300, "rank"),
        (1, "F", 0, 1_000, "message"),
        (1, "B", 0, 2_000, "rank"),
        (1, "F", 1, 1_000, "rank"),
        (1, "B", 1, 2_000, "rank"),
        (0, "B", 1, 2_000, "message"),
    ]


def test_a_gap_on_the_path_has_the_name_of_its_class(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "rank_00000.h5", header()) as writer:
        writer.event(Kind.DATA, 0, -1, 0, 0, 0, 10)
        writer.event(Kind.F, 0, 0, 0, 10, 10, 40)
        writer.event(Kind.WAIT, 0, -1, 0, -1, 40, 70, wait_class=TimeClass.CAP)
        writer.event(Kind.B, 0, 0, 0, 80, 80, 100)
        writer.step(0, 0, 110)
    report = summarize(open_run(tmp_path))
    names = [(entry.kind, entry.length) for entry in report.critical_path]
    assert names == [("data", 10), ("F", 30), ("cap", 30), ("runtime", 10), ("B", 20), ("runtime", 10)]


def test_the_path_goes_through_the_slower_replicas_reduce_scatter(tmp_path: Path) -> None:
    for rank, length in enumerate((100, 400)):
        placed = header(rank=rank, world_size=2, mesh=(1, 2, 1), coords=(0, rank, 0))
        with EventWriter(tmp_path / f"rank_{rank:05d}.h5", placed) as writer:
            writer.clock(0, 0, 1)
            writer.event(Kind.B, 0, 0, 0, 0, 0, length)
            writer.event(Kind.WAIT, 0, -1, 0, -1, length, 450, wait_class=TimeClass.EXPOSED_COMM)
            writer.event(Kind.RS, 0, 0, 0, length, length, 450, nbytes=64)
            writer.event(Kind.UPDATE, 0, 0, 0, 450, 450, 500 + (1 - rank))
            writer.step(0, 0, 500 + (1 - rank))
    report = summarize(open_run(tmp_path))
    names = [(entry.rank, entry.kind, entry.length) for entry in report.critical_path]
    assert names == [(1, "B", 400), (0, "exposed_comm", 50), (0, "UPDATE", 51)]
    assert report.efficiency.transfer == pytest.approx(451 / 501)


def test_the_json_has_the_keys_that_scripts_rely_on(tmp_path: Path) -> None:
    document = json.loads(json.dumps(report_of(tmp_path, Pipeline(2, 4, 1_000, 2_000, steps=3)).to_json()))
    assert {
        "format", "schema_version", "run", "job_id", "world_size", "mesh", "steps", "wall_ns", "classes", "ranks",
        "bubble_ratio", "efficiency", "step_ns", "critical_path", "dispatch_overhead_ns_per_task", "gaps",
    } <= set(document)  # fmt: skip
    assert document["steps"] == [0, 2]
    assert document["mesh"] == [2, 1, 1]
    assert set(document["efficiency"]) == {"parallel", "load_balance", "communication", "serialization", "transfer"}
    assert set(document["step_ns"]) == {"median", "p10", "p90"}
    assert document["step_ns"]["median"] == 15_000
    for rank in document["ranks"]:
        assert set(rank) == {"rank", "stage", "wall_ns", "classes", "peak_in_flight", "peak_bytes"}
        assert sum(rank["classes"].values()) == rank["wall_ns"] == document["wall_ns"]
    assert [rank["peak_bytes"] for rank in document["ranks"]] == [1 << 20, 2 << 20]
    assert sum(document["classes"].values()) == 2 * document["wall_ns"]
    assert set(document["critical_path"][0]) == {
        "rank", "kind", "microbatch", "chunk", "step", "t_start", "t_end", "via", "peer"
    }  # fmt: skip


def test_chosen_steps_include_both_ends(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 4, 1_000, 2_000, steps=5))
    run = open_run(tmp_path)
    assert summarize(run, (1, 3)).steps == (1, 3)
    assert summarize(run, (3, None)).steps == (3, 4)
    assert summarize(run, (1, 3)).wall_ns == 3 * 15_000
    with pytest.raises(AnalysisError, match="no step in 7:9; all ranks finished 0 to 4"):
        summarize(run, (7, 9))


def test_only_steps_that_all_ranks_finished_are_analysed(tmp_path: Path) -> None:
    for rank, steps in enumerate((4, 2)):
        with EventWriter(tmp_path / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2)) as writer:
            writer.clock(0, 0, 1)
            for step in range(steps):
                writer.step(step, step * 10, step * 10 + 10)
    report = summarize(open_run(tmp_path))
    assert report.steps == (0, 1)
    assert any("log ends before step 3" in gap for gap in report.gaps)


def test_a_rank_without_a_finished_step_is_left_out_and_said(tmp_path: Path) -> None:
    for rank, steps in enumerate((2, 0)):
        with EventWriter(tmp_path / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2)) as writer:
            writer.clock(0, 0, 1)
            for step in range(steps):
                writer.step(step, step * 10, step * 10 + 10)
    report = summarize(open_run(tmp_path))
    assert [rank.rank for rank in report.ranks] == [0]
    assert any("rank 1: left out" in gap for gap in report.gaps)


def test_a_log_without_a_finished_step_is_refused(tmp_path: Path) -> None:
    EventWriter(tmp_path / "rank_00000.h5", header()).close()
    with pytest.raises(AnalysisError, match="no rank has finished a step"):
        summarize(open_run(tmp_path))


def test_messages_that_arrive_before_they_were_sent_are_counted(tmp_path: Path) -> None:
    write_run(tmp_path, Pipeline(2, 3, 1_000, 2_000, offsets=[0, -5_000], clock_samples=False))
    report = summarize(open_run(tmp_path))
    assert any("3 messages seem to arrive before they were sent, by up to 5 µs" in gap for gap in report.gaps)
