"""The classes of the accounting: they close for any log, and have the values that a pencil gives for simple ones."""

import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from synthetic_log import ORIGIN, Pipeline, header, write_run

from hpcpipe.analyze import frames, summarize
from hpcpipe.analyze.accounting import account
from hpcpipe.analyze.rows import read_rows
from hpcpipe.analyze.windows import make_windows
from hpcpipe.events import EventWriter, open_run
from hpcpipe.plan import FLAG_RECOMPUTED, Kind, TimeClass

times = st.integers(0, 300)
rows = st.tuples(
    st.sampled_from(list(Kind)), st.integers(0, 3), st.integers(0, 3), times, times, st.integers(0, 60),
    st.sampled_from(list(TimeClass)), st.integers(-1, 3), st.integers(0, 3), st.integers(0, 2),
)  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, float, list[int], list[tuple[object, ...]]]]:
    """Return for each rank its clock's offset and drift, the ends of its steps, and rows without rhyme or reason."""
    ranks = draw(st.integers(1, 3))
    steps = draw(st.integers(1, 3))
    made = []
    for rank in range(ranks):
        offset = draw(st.integers(-(10**6), 10**6)) if rank else 0
        ends = sorted(draw(st.lists(st.integers(1, 300), min_size=steps, max_size=steps)))
        made.append(
            (offset, draw(st.sampled_from([0.0, 1e-4])) if rank else 0.0, ends, draw(st.lists(rows, max_size=25)))
        )
    return made


@settings(max_examples=20, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(logs())
def test_the_classes_of_every_rank_and_window_sum_to_its_length(
    made: list[tuple[int, float, list[int], list[tuple[int, ...]]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for rank, (offset, drift, ends, events) in enumerate(made):
            with EventWriter(Path(folder) / f"rank_{rank:05d}.h5", header(rank=rank, world_size=3)) as writer:
                for time in (0, 10**9):
                    writer.clock(time + offset, offset + round(drift * time), 2)
                for kind, step, microbatch, ready, start, length, wait_class, peer, flags, chunk in events:
                    writer.event(
                        kind, step, microbatch, chunk, ready + offset, start + offset, start + length + offset,
                        wait_class=wait_class, peer=peer, flags=flags,
                    )  # fmt: skip
                for step, end in enumerate(ends):
                    writer.step(step, offset, end + offset)
        run = open_run(Path(folder))
        windows, ranks = make_windows(run)
        for log in ranks:
            totals = account(read_rows(log), windows, int(log.steps.t_end.max())).totals
            assert totals.sum(axis=1).tolist() == windows.lengths.tolist()
            assert totals.min() >= 0
        report = summarize(run)
        for each in report.ranks:
            assert sum(each.classes.values()) == each.wall_ns == report.wall_ns
        assert sum(entry.length for entry in report.critical_path) == report.wall_ns
        assert report.step_classes.sum(axis=1).tolist() == (len(ranks) * windows.lengths).tolist()
        pieces = pl.concat([frame for _, frame in frames(run)])
        spans = pieces.group_by("rank").agg(ns=(pl.col("t_end") - pl.col("t_start")).sum())
        assert set(spans.iter_rows()) == {(rank.rank, report.wall_ns) for rank in report.ranks}


def classes_of(folder: Path, pipeline: Pipeline, steps: tuple[int, int] | None = None) -> list[dict[TimeClass, int]]:
    write_run(folder, pipeline)
    report = summarize(open_run(folder), steps)
    return [{name: ns for name, ns in rank.classes.items() if ns} for rank in report.ranks]


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 8), (5, 7)])
def test_gpipe_and_1f1b_without_a_network_have_the_textbook_bubble(
    tmp_path: Path, order: str, stages: int, microbatches: int
) -> None:
    forward, backward = 1_000, 2_500
    write_run(tmp_path, Pipeline(stages, microbatches, forward, backward, order))
    report = summarize(open_run(tmp_path))
    assert report.wall_ns == (microbatches + stages - 1) * (forward + backward)
    assert report.bubble_ratio == pytest.approx((stages - 1) / (microbatches + stages - 1), rel=1e-12)
    for rank in report.ranks:
        assert {name: ns for name, ns in rank.classes.items() if ns} == {
            name: ns
            for name, ns in {
                TimeClass.FORWARD: microbatches * forward,
                TimeClass.BACKWARD: microbatches * backward,
                TimeClass.WARMUP: rank.stage * forward,
                TimeClass.DEPENDENCY: (stages - 1 - rank.stage) * (forward + backward),
                TimeClass.DRAIN: rank.stage * backward,
            }.items()
            if ns
        }
        expected = microbatches if order == "gpipe" else min(stages - rank.stage, microbatches)
        assert rank.peak_in_flight == expected


def test_waiting_for_the_next_step_before_the_others_ended_this_one_is_drain(tmp_path: Path) -> None:
    classes = classes_of(tmp_path, Pipeline(2, 4, 1_000, 2_000, steps=3), (1, 1))
    assert classes[0] == {TimeClass.FORWARD: 4_000, TimeClass.BACKWARD: 8_000, TimeClass.DEPENDENCY: 3_000}
    assert classes[1] == {
        TimeClass.FORWARD: 4_000, TimeClass.BACKWARD: 8_000, TimeClass.WARMUP: 1_000, TimeClass.DRAIN: 2_000
    }  # fmt: skip


@pytest.mark.parametrize("offset", [0, 3_000_000_000, -7])
def test_a_late_message_is_transfer_from_when_it_was_sent(tmp_path: Path, offset: int) -> None:
    def latency(kind: Kind, stage: int, microbatch: int) -> int:
        return {(Kind.F, 1, 0): 300, (Kind.B, 0, 1): 70}.get((kind, stage, microbatch), 0)

    classes = classes_of(tmp_path, Pipeline(2, 2, 1_000, 2_000, latency=latency, offsets=[0, offset]))
    assert classes[1][TimeClass.WARMUP] == 1_000
    assert classes[1][TimeClass.TRANSFER] == 300
    # stage 1: F0 1300-2300, B0 -4300, F1 -5300, B1 -7300; stage 0: F0 -1000, F1 -2000, B0 4300-6300, B1 7370-9370
    assert classes[0] == {
        TimeClass.FORWARD: 2_000, TimeClass.BACKWARD: 4_000, TimeClass.DEPENDENCY: 2_300 + 1_000, TimeClass.TRANSFER: 70
    }  # fmt: skip
    assert classes[1][TimeClass.DRAIN] == 9_370 - 7_300


def one_rank(folder: Path, rows: list[tuple[int, int, int, dict[str, int]]], end: int = 100) -> dict[TimeClass, int]:
    with EventWriter(folder / "rank_00000.h5", header()) as writer:
        for kind, start, stop, more in rows:
            writer.event(kind, more.pop("step", 0), 0, 0, more.pop("t_ready", -1), start, stop, **more)
        writer.step(0, 0, end)
    return {name: ns for name, ns in summarize(open_run(folder)).ranks[0].classes.items() if ns}


@pytest.mark.parametrize(
    "wait_class", [TimeClass.ORDER, TimeClass.CAP, TimeClass.AGREEMENT, TimeClass.EXPOSED_COMM, TimeClass.DRAIN]
)
def test_other_waits_keep_the_class_that_the_engine_gave(tmp_path: Path, wait_class: TimeClass) -> None:
    wait = (Kind.WAIT, 10, 60, {"wait_class": wait_class, "peer": 0, "t_ready": 20})
    assert one_rank(tmp_path, [wait]) == {wait_class: 50, TimeClass.RUNTIME: 50}


def test_time_that_no_row_covers_is_the_runtimes(tmp_path: Path) -> None:
    assert one_rank(tmp_path, [(Kind.F, 0, 30, {}), (Kind.B, 50, 100, {})]) == {
        TimeClass.FORWARD: 30, TimeClass.RUNTIME: 20, TimeClass.BACKWARD: 50
    }  # fmt: skip


def test_of_overlapping_rows_work_wins_over_waits_and_the_earlier_wins(tmp_path: Path) -> None:
    wait = {"wait_class": TimeClass.CAP}
    classes = one_rank(tmp_path, [(Kind.WAIT, 0, 100, wait), (Kind.F, 20, 60, {}), (Kind.B, 40, 80, {})])
    assert classes == {TimeClass.CAP: 40, TimeClass.FORWARD: 40, TimeClass.BACKWARD: 20}


def test_collectives_and_messages_run_beside_the_rank_and_take_none_of_its_time(tmp_path: Path) -> None:
    beside = [(kind, 0, 100, {}) for kind in (Kind.RS, Kind.AG, Kind.SEND, Kind.RECV)]
    assert one_rank(tmp_path, [*beside, (Kind.F, 0, 60, {})]) == {TimeClass.FORWARD: 60, TimeClass.RUNTIME: 40}


def test_loading_and_saving_have_classes_of_their_own(tmp_path: Path) -> None:
    rows = [(Kind.DATA, 0, 5, {}), (Kind.UPDATE, 5, 10, {}), (Kind.CHECKPOINT, 10, 100, {})]
    assert one_rank(tmp_path, rows) == {TimeClass.DATA: 5, TimeClass.UPDATE: 5, TimeClass.CHECKPOINT: 90}


def test_forwards_done_again_agreements_and_norms_have_their_classes(tmp_path: Path) -> None:
    rows = [
        (Kind.F, 0, 30, {}), (Kind.AGREE, 20, 40, {}), (Kind.F, 50, 70, {"flags": FLAG_RECOMPUTED}),
        (Kind.WAIT, 70, 80, {"wait_class": TimeClass.CAP}), (Kind.NORM, 60, 100, {}),
    ]  # fmt: skip
    assert one_rank(tmp_path, rows) == {
        TimeClass.FORWARD: 30, TimeClass.AGREEMENT: 10, TimeClass.RUNTIME: 10, TimeClass.RECOMPUTE: 20,
        TimeClass.CAP: 10, TimeClass.EXPOSED_COMM: 20,
    }  # fmt: skip


def test_a_forward_done_again_is_cut_out_of_its_backward_and_counts_as_no_task(tmp_path: Path) -> None:
    again = {"flags": FLAG_RECOMPUTED}
    rows = [(Kind.F, 0, 20, {}), (Kind.B, 20, 80, {}), (Kind.F, 25, 40, again), (Kind.F, 50, 65, again)]
    assert one_rank(tmp_path, rows) == {
        TimeClass.FORWARD: 20, TimeClass.BACKWARD: 30, TimeClass.RECOMPUTE: 30, TimeClass.RUNTIME: 20,
    }  # fmt: skip
    report = summarize(open_run(tmp_path))
    assert report.ranks[0].peak_in_flight == 1


def test_windows_end_when_the_last_rank_ends_the_step(tmp_path: Path) -> None:
    for rank, ends in enumerate(((50, 90), (60, 80))):
        with EventWriter(tmp_path / f"rank_{rank:05d}.h5", header(rank=rank, world_size=2)) as writer:
            writer.clock(0, 0, 1)
            for step, end in enumerate(ends):
                writer.step(step, 3 * rank, end)
    windows, _ = make_windows(open_run(tmp_path))
    assert windows.edges.tolist() == [3, 60, 90]


def test_offsets_and_drifts_of_clocks_change_no_class(tmp_path: Path) -> None:
    plain = classes_of(tmp_path / "plain", Pipeline(3, 4, 10_000, 20_000))
    moved = Pipeline(3, 4, 10_000, 20_000, offsets=[0, 10**9, -(10**9)], drifts=[0, 0, 0])
    assert classes_of(tmp_path / "moved", moved) == plain
    assert ORIGIN > 10**9
