"""Clock correction against offsets and drifts that are known because the tests put them there."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_log import ORIGIN, Pipeline, write_run

from hpcpipe.events import open_run
from hpcpipe.events.clock import fit_clock

MINUTE = 60 * 10**9


@given(
    offset=st.integers(-5 * 10**9, 5 * 10**9),
    ppm=st.floats(-100, 100),
    errors=st.lists(st.integers(-5000, 5000), min_size=2, max_size=12),
)
def test_offsets_of_seconds_and_drifts_of_100_ppm_are_recovered_to_20_us(
    offset: int, ppm: float, errors: list[int]
) -> None:
    true = np.linspace(0, 10 * MINUTE, len(errors)).astype(np.int64) + ORIGIN
    ahead = offset + np.rint(ppm * 1e-6 * (true - ORIGIN)).astype(np.int64)
    local = true + ahead
    fit = fit_clock(local, ahead + np.array(errors), np.full(len(errors), 10_000))
    between = np.linspace(0, 10 * MINUTE, 101).astype(np.int64) + ORIGIN
    shown = between + offset + np.rint(ppm * 1e-6 * (between - ORIGIN)).astype(np.int64)
    assert np.max(np.abs(fit.correct(shown) - between)) <= 20_000


def test_differences_within_the_round_trips_are_not_taken_for_drift() -> None:
    fit = fit_clock(np.array([0, 10**9]), np.array([100, 700]), np.array([1000, 2000]))
    assert fit.drift == 0
    assert fit.offset == 100


def test_no_samples_leave_times_as_they_are() -> None:
    none = np.array([], dtype=np.int64)
    times = np.array([3, 1, 2])
    assert fit_clock(none, none, none).correct(times).tolist() == [3, 1, 2]


@given(st.lists(st.integers(0, 10**15), min_size=2), st.floats(-1e-4, 1e-4))
def test_correction_keeps_the_order_of_times(times: list[int], drift: float) -> None:
    span = 10**15
    fit = fit_clock(np.array([0, span]), np.array([0, round(drift * span)]), np.array([2, 2]))
    corrected = fit.correct(np.sort(np.array(times)))
    assert np.all(np.diff(corrected) >= 0)


@pytest.mark.parametrize("seconds", [0, 3])
def test_a_run_is_read_on_rank_0s_clock(tmp_path: Path, seconds: int) -> None:
    offsets = [0, seconds * 10**9, -seconds * 10**9 + 17]
    pipeline = Pipeline(3, 4, 1000, 2000, offsets=offsets)
    write_run(tmp_path, pipeline)
    log = open_run(tmp_path)
    assert [rank.steps.t_begin.tolist() for rank in log.ranks] == [[ORIGIN]] * 3
    first = [int(rank.events.t_start[rank.events.kind == 0].min()) for rank in log.ranks]
    assert first == [ORIGIN, ORIGIN + 1000, ORIGIN + 2000]
