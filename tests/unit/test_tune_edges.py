"""Windows, fits and the detector on traces whose answer is known by construction."""

import random
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcpipe.tune import BurstDetector, EdgeWindow, fit_link


@given(st.lists(st.integers(-5, 1000), min_size=1, max_size=80), st.integers(1, 20))
def test_a_window_holds_the_quantiles_of_its_last_messages(times: list[int], size: int) -> None:
    window = EdgeWindow(size)
    for ns in times:
        window.add(ns)
    last = [max(0, ns) for ns in times[-size:]]
    assert len(window) == len(last)
    assert window.median == median_low(last)
    assert window.p90 == np.quantile(last, 0.9, method="inverted_cdf")


def test_an_empty_window_says_so() -> None:
    window = EdgeWindow(2)
    window.add(3)
    window.clear()
    with pytest.raises(ValueError, match="no message"):
        _ = window.median


@given(
    latency=st.floats(0, 1e7),
    ns_per_byte=st.floats(0.001, 100),
    sizes=st.lists(st.integers(1, 1 << 24), min_size=2, max_size=9, unique=True),
)
def test_a_fit_finds_latency_and_bandwidth_of_a_line(latency: float, ns_per_byte: float, sizes: list[int]) -> None:
    fit = fit_link([(size, latency + ns_per_byte * size) for size in sizes])
    assert fit is not None
    for size in sizes:
        assert fit.at(size) == pytest.approx(latency + ns_per_byte * size, rel=1e-6, abs=1.0)


def test_a_fit_is_not_led_astray_by_a_tenth_of_slow_messages() -> None:
    draw = random.Random(1)
    samples = [
        (size, 50_000 + 8 * size + draw.gauss(0, 500)) for size in (1000, 10_000, 50_000, 100_000) for _ in range(25)
    ]
    slow = [(size, ns * (20 if i % 10 == 0 else 1)) for i, (size, ns) in enumerate(samples)]
    fit = fit_link(slow)
    assert fit is not None
    assert fit.ns_per_byte == pytest.approx(8, rel=0.1)
    assert fit.latency_ns == pytest.approx(50_000, rel=0.5)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(10, 5.0), (10, 7.0)], None),
        ([(10, 9.0), (20, 5.0)], (7.0, 0.0)),  # larger ones seem faster: latency alone
        ([(10, 10.0), (20, 40.0)], (0.0, (10 * 10 + 20 * 40) / (10**2 + 20**2))),  # bandwidth alone, through the origin
    ],
)
def test_no_part_of_a_fit_is_negative(samples: list[tuple[float, float]], expected: tuple[float, float] | None) -> None:
    fit = fit_link(samples)
    assert (None if fit is None else (fit.latency_ns, fit.ns_per_byte)) == (
        expected if expected is None else pytest.approx(expected)
    )


def changes(values: list[float], **settings: float) -> list[tuple[int, str]]:
    detector = BurstDetector(floor=10.0, **settings)
    return [(at, detector.state) for at, value in enumerate(values) if detector.update(value)]


@given(
    quiet=st.floats(100, 1e6),
    factor=st.floats(2.1, 1000),
    lengths=st.lists(st.integers(3, 30), min_size=2, max_size=8),
)
def test_every_change_of_a_clean_trace_is_found_two_steps_later(
    quiet: float, factor: float, lengths: list[int]
) -> None:
    values, expected = [], []
    for phase, length in enumerate(lengths):
        if phase:
            expected.append((len(values) + 1, "preempted" if phase % 2 else "quiet"))
        values += [quiet * (factor if phase % 2 else 1.0)] * length
    assert changes(values) == expected


@given(st.integers(0, 10_000))
def test_noise_of_a_tenth_is_no_change_and_hides_none(seed: int) -> None:
    draw = random.Random(seed)
    levels = [1000.0] * 50 + [10_000.0] * 50 + [1000.0] * 50
    found = changes([level * draw.uniform(0.9, 1.1) for level in levels])
    assert found == [(51, "preempted"), (101, "quiet")]


def test_a_single_slow_step_is_no_change() -> None:
    assert changes([100, 100, 5000, 100, 100, 5000, 100, 5000, 100]) == []


def test_a_level_between_the_two_thresholds_does_not_flap() -> None:
    steps = [1000.0] * 10 + [2500.0] * 5 + [1900.0, 2100.0] * 20
    assert changes(steps) == [(11, "preempted")]


def test_what_is_below_the_floor_is_noise_of_the_clock() -> None:
    assert changes([1.0] * 5 + [9.0] * 5) == []


def test_what_stays_slow_for_a_whole_window_is_the_new_normal_and_a_further_rise_is_seen() -> None:
    values = [100.0] * 20 + [1000.0] * 40 + [10_000.0] * 5
    detector = BurstDetector(floor=10.0, window=16)
    seen = [(at, detector.state) for at, value in enumerate(values) if detector.update(value)]
    assert seen == [(21, "preempted"), (61, "preempted")]
    assert detector.baseline == 1000.0


def test_a_run_that_begins_in_a_burst_notices_its_end_and_the_next_one() -> None:
    assert changes([5000.0] * 10 + [100.0] * 10 + [5000.0] * 5) == [(11, "quiet"), (21, "preempted")]


@pytest.mark.parametrize("wrong", [{"rise": 1.2, "fall": 1.5}, {"fall": 0.5}, {"confirm": 0}, {"window": 1}])
def test_a_detector_that_could_not_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        BurstDetector(**wrong)
