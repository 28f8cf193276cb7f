"""What a rank measures of a step and how it tells the others; right values are counted by hand."""

from types import SimpleNamespace

from hpcpipe.plan import FLAG_BACKWARD, FLAG_RECOMPUTED, Kind
from hpcpipe.tune import EdgeTimes, Meter, read_rows
from hpcpipe.tune.meter import WIDTH


def meter(
    stage: int, *, stages: int = 2, tensor_slice: int = 0, shifts: dict[int, int] | None = None, blind: bool = False
) -> Meter:
    place = SimpleNamespace(pipeline=stages, stage=stage, slice=tensor_slice)
    return Meter(place=place, clock_shifts=shifts or dict.fromkeys(range(stages), 0), blind=blind)


def work(rank: Meter, kind: Kind, *times: int, flags: int = 0) -> None:
    for ns in times:
        rank.measure(kind, 0, 0, 1000, 1000 + ns, -1, 0, flags)


def receive(rank: Meter, peer: int, sent: int, noticed: int, *, gradient: bool = False, nbytes: int = 64) -> None:
    rank.measure(Kind.RECV, 0, sent, 0, noticed, peer, nbytes, FLAG_BACKWARD * gradient)


def summed(*rows: list[float]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def test_stages_know_all_medians_after_one_sum() -> None:
    first, last = meter(0), meter(1)
    for rank, forward in ((first, 10), (last, 30)):
        work(rank, Kind.F, forward, forward + 1, forward + 100)
        work(rank, Kind.B, 2 * forward)
    receive(last, 0, 0, 7)
    receive(last, 0, 0, 9)
    receive(first, 1, 0, 5, gradient=True, nbytes=32)
    report = read_rows(summed(first.row(400), last.row(420)), stages=2)
    assert report is not None
    assert (report.forward, report.backward, report.step_ns) == ((11, 31), (20, 60), 410)
    assert report.activations == (EdgeTimes(7, 9, 64),)
    assert report.gradients == (EdgeTimes(5, 5, 32),)
    assert dict(report.edges()) == {(0, 1): EdgeTimes(7, 9, 64), (1, 0): EdgeTimes(5, 5, 32)}


def test_replicas_are_averaged_and_only_the_first_slice_speaks() -> None:
    one, other, quiet = meter(0, stages=1), meter(0, stages=1), meter(0, stages=1, tensor_slice=1)
    for rank, ns in ((one, 10), (other, 20), (quiet, 1000)):
        work(rank, Kind.F, ns)
        work(rank, Kind.B, ns)
    row = quiet.row(5)
    assert not any(row)
    report = read_rows(summed(one.row(100), other.row(300), row), stages=1)
    assert report is not None
    assert (report.forward, report.step_ns) == ((15,), 200)


def test_a_step_that_one_rank_leaves_out_has_no_time_but_its_tasks_count() -> None:
    ranks = meter(0), meter(1)
    for rank in ranks:
        work(rank, Kind.F, 10)
        work(rank, Kind.B, 20)
    report = read_rows(summed(ranks[0].row(0), ranks[1].row(50)), stages=2)
    assert report is not None
    assert report.step_ns is None
    assert report.forward == (10, 10)
    assert report.activations == (None,)


def test_nothing_is_known_while_a_stage_is_silent() -> None:
    first, last = meter(0), meter(1)
    work(first, Kind.F, 10)
    work(first, Kind.B, 10)
    assert read_rows(summed(first.row(5), last.row(5)), stages=2) is None


def test_rows_are_whole_numbers_so_their_sum_is_exact_in_any_order() -> None:
    rank = meter(0)
    work(rank, Kind.F, 10, 11)
    work(rank, Kind.B, 10)
    receive(rank, 1, 3, 10, gradient=True)
    row = rank.row(7)
    assert len(row) == rank.entries == 2 * WIDTH
    assert all(value == int(value) and abs(value) < 2**53 for value in row)


def test_a_step_leaves_nothing_behind_for_the_next() -> None:
    rank = meter(1)
    work(rank, Kind.F, 10)
    work(rank, Kind.B, 10)
    receive(rank, 0, 0, 900)
    rank.row(7)
    assert not any(rank.row(7))


def test_what_is_computed_again_is_no_forward() -> None:
    rank = meter(0, stages=1)
    work(rank, Kind.F, 10)
    work(rank, Kind.F, 99, 99, 99, flags=FLAG_RECOMPUTED)
    work(rank, Kind.B, 30)
    report = read_rows(rank.row(1), stages=1)
    assert report is not None
    assert report.forward == (10,)


def test_a_sender_s_clock_is_corrected() -> None:
    rank = meter(1, shifts={0: 500, 1: 0})
    work(rank, Kind.F, 1)
    work(rank, Kind.B, 1)
    receive(rank, 0, 100, 640)
    first = [1.0, 1, 1, 1, 1, *[0.0] * 9]
    report = read_rows(summed(rank.row(1), [*first, *[0.0] * WIDTH]), stages=2)
    assert report is not None
    assert report.activations[0] == EdgeTimes(40, 40, 64)


def test_a_message_that_came_while_nobody_looked_is_taken_to_have_come_half_way() -> None:
    rank = meter(1, blind=True)
    rank.measure(Kind.F, 0, 0, 1000, 2000, -1, 0, 0)
    receive(rank, 0, 1400, 2000)  # sent within the task: it came between 1400 and 2000
    rank.measure(Kind.B, 0, 0, 2000, 3000, -1, 0, 0)
    receive(rank, 0, 1900, 3010)  # nothing had come at 2000: it took at least 100
    receive(rank, 0, 3005, 3012)  # nothing ran since: it took 7
    row = rank.row(0)
    assert row[WIDTH + 6 : WIDTH + 9] == [1.0, 300.0, 610.0]  # of 7, 300 and 610


def test_what_passes_between_two_ready_tasks_is_overhead() -> None:
    rank = meter(0, stages=1)
    for ready, start, end in ((0, 0, 10), (5, 13, 20), (15, 24, 30), (29, 80, 90)):  # the last had to wait for its turn
        rank.measure(Kind.F, 0, ready, start, end, -1, 0, 0)
    rank.measure(Kind.B, 0, 95, 100, 110, -1, 0, 0)  # came late: no overhead
    report = read_rows(rank.row(1), stages=1)
    assert report is not None
    assert report.overhead == (3,)
