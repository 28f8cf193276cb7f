"""One file for the ranks of a node: rings in memory that others fill, one rank that writes, whoever dies meanwhile."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from synthetic_log import header

from hpcpipe.events import EventWriter, open_run
from hpcpipe.events.ring import ring_bytes
from hpcpipe.plan import Kind

ROWS = 4096


def make_node(path: Path, ranks: int, *, first: int = 0, world: int | None = None) -> list[EventWriter]:
    """Return a node's writers; all in this process, each with a ring of its own as on a real node."""
    memories = [memoryview(bytearray(ring_bytes(ROWS))) for _ in range(ranks)]
    headers = [header(rank=first + i, world_size=world or ranks) for i in range(ranks)]
    return [EventWriter.on_node(path, headers, memories, own=place, event_rows=ROWS) for place in sorted(range(ranks))]


def write(writer: EventWriter, rank: int, steps: int, events: int = 100) -> None:
    for step in range(steps):
        for i in range(events):
            writer.event(Kind.F, step, i, 0, rank, 1000 * step + i, 1000 * step + i + 1)
        writer.step(step, 1000 * step, 1000 * step + 999, peak_bytes=rank)


def test_the_rows_of_every_rank_come_back_under_its_own_header(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    writers = make_node(tmp_path / "events" / "node_00000.h5", 3)
    for step in range(7):
        for rank, writer in enumerate(writers):
            for i in range(100 + rank):
                writer.event(Kind.F, step, i, 0, -1, 1000 * step + i, 1000 * step + i + 1, peer=rank)
            writer.step(step, 1000 * step, 1000 * step + 999, peak_bytes=rank)
            writer.flush(wait=False)
    for writer in reversed(writers):
        writer.clock(0, 0, 1)
        writer.close()
    log = open_run(tmp_path)
    assert log.gaps == ()
    for rank, each in enumerate(log.ranks):
        assert (each.rank, each.header.coords, each.complete) == (rank, (rank, 0, 0), True)
        assert each.events.peer.tolist() == [rank] * 7 * (100 + rank)
        assert each.events.t_start.tolist() == [1000 * s + i for s in range(7) for i in range(100 + rank)]
        assert each.steps.step.tolist() == list(range(7))
        assert set(each.steps.peak_bytes.tolist()) == {rank}


def test_a_finished_file_holds_the_ranks_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "node_00004.h5"
    writers = make_node(path, 2, first=4, world=6)
    for step in range(20):
        for writer in writers:
            for i in range(30):
                writer.event(Kind.B, step, i, 0, 0, 30 * step + i, 0)
            writer.flush()
    for writer in reversed(writers):
        writer.close()
    with h5py.File(path) as file:
        assert file.attrs["layout"] == "node"
        assert file["ranks/rank"][()].tolist() == [4, 5]
        assert file["ranks/events_first"][()].tolist() == [0, 600]
        assert file["ranks/events_count"][()].tolist() == [600, 600]
        assert file["events/rank"][()].tolist() == [4] * 600 + [5] * 600
        assert file["events/t_start"][()].tolist() == list(range(600)) * 2


def test_a_rank_that_never_closes_is_written_as_far_as_it_came_and_named(tmp_path: Path) -> None:
    path = tmp_path / "node_00000.h5"
    writers = make_node(path, 2)
    write(writers[1], 1, 2)
    writers[1].event(Kind.F, 2, 0, 0, 1, 2000, 2001)  # of a step that never ends
    write(writers[0], 0, 4)
    writers[0].close()
    log = open_run(path)
    assert [len(rank.events) for rank in log.ranks] == [400, 201]
    assert [rank.complete for rank in log.ranks] == [True, False]
    assert any(gap.startswith("rank 1: log ends at step 1, others reach 3 and was not closed") for gap in log.gaps)


def test_what_a_rank_hands_over_is_in_the_file_soon_though_nobody_flushes(tmp_path: Path) -> None:
    path = tmp_path / "node_00000.h5"
    writers = make_node(path, 2)
    writers[1].event(Kind.F, 0, 7, 0, 1, 2, 3)
    writers[1].flush()  # answered by the other rank's thread
    copy = tmp_path / "copy.h5"
    copy.write_bytes(path.read_bytes())
    assert open_run(copy).ranks[1].events.microbatch.tolist() == [7]
    writers[0].close()


def test_any_range_of_a_ranks_rows_is_read_while_they_lie_mixed_and_still_once_the_file_is_packed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node_00000.h5"
    writers = make_node(path, 3)
    for step in range(8):
        for rank, writer in enumerate(writers):
            for i in range(10 + rank):
                writer.event(Kind.F, step, rank, 0, 0, 100 * step + i, 100 * step + i)
            writer.flush()
    copy = tmp_path / "copy.h5"
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r", locking=False, swmr=True) as file:
        assert set(np.diff(file["events/rank"][()]).tolist()) == {0, 1, -2}, "the rows of the ranks lie mixed"
    growing = open_run(copy)

    def check(rank: int) -> None:
        log = growing.ranks[rank]
        wanted = [100 * step + i for step in range(8) for i in range(10 + rank)]
        assert (len(log.rows), set(log.events.microbatch.tolist())) == (len(wanted), {rank})
        for start, stop in ((0, None), (3, 4), (7, 31), (40, 10_000), (5, 5)):
            assert log.rows.read(["t_start"], start, stop)["t_start"].tolist() == wanted[start:stop]

    for rank in range(3):
        check(rank)
        with growing.ranks[rank].rows.held_open():
            check(rank)
    for writer in reversed(writers):
        writer.event(Kind.B, 8, 9, 0, 0, 0, 0)
        writer.close()
    path.replace(copy)
    for rank in range(3):
        check(rank)


def test_node_files_and_rank_files_of_one_run_are_read_together(tmp_path: Path) -> None:
    writers = make_node(tmp_path / "node_00000.h5", 2, world=3)
    for rank, writer in reversed(list(enumerate(writers))):
        write(writer, rank, 2)
        writer.close()
    with EventWriter(tmp_path / "rank_00002.h5", header(rank=2, world_size=3)) as writer:
        write(writer, 2, 2)
    log = open_run(tmp_path)
    assert [rank.rank for rank in log.ranks] == [0, 1, 2]
    assert [len(rank.events) for rank in log.ranks] == [200, 200, 200]


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_many_blocks_of_mixed_rows_are_sorted_without_loss(tmp_path: Path, compression: str) -> None:
    rows, ranks = 1 << 14, 3
    path = tmp_path / "node_00000.h5"
    memories = [memoryview(bytearray(ring_bytes(rows))) for _ in range(ranks)]
    headers = [header(rank=rank, world_size=ranks) for rank in range(ranks)]
    writers = [
        EventWriter.on_node(path, headers, memories, own=rank, event_rows=rows, compression=compression)
        for rank in range(ranks)
    ]
    total = 100_000
    for at in range(0, total, 5000):
        for rank, writer in enumerate(writers):
            for i in range(at, at + 5000):
                writer.event(Kind.F, 0, rank, 0, 0, 3 * i + rank, 0)
    for writer in reversed(writers):
        writer.close()
    for rank, log in enumerate(open_run(path).ranks):
        assert np.array_equal(log.events.t_start, 3 * np.arange(total) + rank)
        assert np.all(log.events.microbatch == rank)
        assert log.lost == 0
