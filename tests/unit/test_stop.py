"""Signals as a wish to stop: noted, counted over ranks, one wish by several doors, and a second one that leaves."""

import signal

import pytest

from hpcpipe import stop


@pytest.fixture
def clock(monkeypatch):
    """Set the time in ns by `clock[0]`."""
    time = [10**12]
    monkeypatch.setattr(stop, "monotonic_ns", lambda: time[0])
    return time


@pytest.mark.parametrize("number", stop.SIGNALS)
def test_a_signal_is_noted_and_everything_is_as_before_afterwards(clock, number):
    before = [signal.getsignal(each) for each in stop.SIGNALS]
    with stop.StopWish(lambda _: pytest.fail("left")) as wish:
        assert wish.came == (0.0, 0.0)
        signal.raise_signal(number)
        assert wish.came == tuple(float(each == number) for each in stop.SIGNALS)
    assert [signal.getsignal(each) for each in stop.SIGNALS] == before


def test_the_same_wish_by_another_door_is_no_second_one(clock):
    left = []
    with stop.StopWish(left.append) as wish:
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 900_000_000
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR2)
        assert not left
        assert wish.came == (1.0, 1.0)


def test_a_second_signal_leaves(clock):
    left = []
    with stop.StopWish(left.append):
        signal.raise_signal(signal.SIGUSR2)
        clock[0] += 1_100_000_000
        signal.raise_signal(signal.SIGTERM)
    assert left == [signal.SIGTERM]


def test_sums_over_ranks_say_what_came_to_how_many():
    assert stop.describe((1.0, 0.0), 4) == "SIGTERM to 1 of 4 ranks"
    assert stop.describe((3.0, 1.0), 4) == "SIGTERM to 3 of 4 ranks and SIGUSR2 to 1 of 4 ranks"
    assert stop.describe((0.0, 0.0), 4) == ""


def test_what_came_before_the_training_is_a_wish_too_and_a_later_one_leaves(clock):
    left = []
    with stop.StopWish(lambda _: pytest.fail("left")) as early:
        signal.raise_signal(signal.SIGUSR2)
        with stop.StopWish(left.append, early=early) as wish:
            assert wish.came == (0.0, 1.0)
            clock[0] += 1_100_000_000
            signal.raise_signal(signal.SIGTERM)
    assert left == [signal.SIGTERM]
