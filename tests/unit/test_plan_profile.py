"""The measured profile against plain statistics, and what it is advised to do at the corners of its range."""

import statistics
from math import exp, sqrt

import pytest

from hpcpipe.plan import Advice, Kind, OnlineProfile, Profile, StageTimes, Task, advise, gather
from hpcpipe.plan.draws import normal


def one_step(meter, times, delays=()):
    for task, ns in times:
        meter.add(task, ns)
    for ns in delays:
        meter.add_delay(ns)
    return meter.end_step()


def steady(forward=100, backward=120, weight=80, count=5):
    times = {Kind.F: forward, Kind.B: backward, Kind.W: weight}
    return [(Task(kind, m), ns) for kind, ns in times.items() for m in range(count)]


def test_steady_times_are_measured_as_they_are():
    row = one_step(OnlineProfile(chunks=1), steady(), delays=[7, 7])
    assert row == StageTimes(((100.0,), (120.0,), (80.0,)), 0.0, 2, 7.0, 7.0)


def test_there_is_no_row_before_every_kind_has_run_in_every_chunk():
    meter = OnlineProfile(chunks=2)
    assert one_step(meter, steady()) is None
    row = one_step(meter, [(Task(task.kind, task.microbatch, 1), ns) for task, ns in steady(50, 60, 40)])
    assert row.durations == ((100.0, 50.0), (120.0, 60.0), (80.0, 40.0))


def test_one_hiccup_does_not_move_the_usual_time_but_shows_in_the_spread():
    row = one_step(OnlineProfile(chunks=1), [*steady()[:-1], (Task(Kind.W, 9), 8000)])
    assert row.durations == ((100.0,), (120.0,), (80.0,))
    assert row.spread > 0.5


def test_the_spread_is_the_relative_standard_deviation():
    """A lognormal factor of sigma has the relative deviation sqrt(exp(sigma^2) - 1)."""
    sigma = 0.3
    times = [(Task(kind, m), round(1e6 * exp(sigma * normal(1, kind, m)))) for kind in range(3) for m in range(4000)]
    times = [(Task(Kind(task.kind), task.microbatch), ns) for task, ns in times]
    assert one_step(OnlineProfile(chunks=1), times).spread == pytest.approx(sqrt(exp(sigma**2) - 1), rel=0.05)


def test_steps_are_smoothed_by_the_weight_of_the_newest():
    meter = OnlineProfile(chunks=1, weight=0.25)
    one_step(meter, steady(forward=100), delays=[10])
    row = one_step(meter, steady(forward=200), delays=[30])
    assert row.durations[Kind.F] == (125.0,)
    assert row.delay == 15.0
    assert row.delay_rms == pytest.approx(sqrt(0.75 * 100 + 0.25 * 900))


def test_tasks_that_the_profile_does_not_know_are_left_out_and_clocks_that_run_backwards_count_as_no_delay():
    meter = OnlineProfile(chunks=1)
    meter.add(Task(Kind.UPDATE, 0), 1_000_000)
    row = one_step(meter, steady(), delays=[-5, 5])
    assert row.delay == 2.5
    assert row.spread == 0.0


def test_rows_of_all_stages_make_the_profile_and_delays_count_by_messages():
    rows = [
        StageTimes(((100.4,), (120.0,), (80.0,)), 0.1, 1, 10.0, 10.0),
        StageTimes(((200.0,), (240.0,), (0.2,)), 0.3, 3, 30.0, 40.0),
    ]
    profile = gather(rows, factors=[1.0, 2.0])
    assert profile.durations == (((100,), (120,), (80,)), ((200,), (240,), (1,)))
    assert profile.delay == statistics.fmean([10, 30, 30, 30])
    assert profile.delay_rms == pytest.approx(sqrt((100 + 3 * 1600) / 4))
    assert profile.spread == 0.3
    assert profile.factors == (1.0, 2.0)
    assert profile.forward == 150.0
    assert profile.of_microbatch(0) == 300


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ((((1,), (1,), (0,)),), "stage 0: W takes 0 ns"),
        ((((1,), (1,)),), "needs F, B and W of every chunk"),
        ((((1,), (1,), (1,)), ((1, 1), (1, 1), (1, 1))), "as many chunks on every stage"),
    ],
)
def test_a_profile_with_holes_is_refused(durations, message):
    with pytest.raises(ValueError, match=message):
        Profile(durations)


def test_a_weight_that_forgets_or_learns_nothing_is_refused():
    with pytest.raises(ValueError, match=r"weight 0\.0 of the newest step"):
        OnlineProfile(chunks=1, weight=0.0)


@pytest.mark.parametrize(
    ("delay", "rms", "spread", "advice"),
    [
        (0, None, 0.0, Advice(2, "fixed")),
        (999, None, 0.14, Advice(2, "fixed")),
        (50, 60.0, 0.16, Advice(2, "ready")),
        (500, 700.0, 0.0, Advice(2, "ready")),
        (1001, None, 0.0, Advice(1, "fixed")),
        (700, 3000.0, 0.3, Advice(1, "ready")),
    ],
)
def test_steady_times_are_ordered_and_slow_links_get_one_chunk(delay, rms, spread, advice):
    durations = Profile.uniform(stages=4, ns=1000).durations
    assert advise(Profile(durations, delay=delay, delay_rms=rms, spread=spread)) == advice
