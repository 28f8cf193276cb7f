"""The tuner of the bucket size against step times whose best size has a closed form."""

import sys
from math import sqrt

import numpy as np
import pytest

from hpcpipe.collective.tuner import FusionTuner, MissingLibraryError, Trial

pytest.importorskip("sklearn")

TOTAL_MB, SMALLEST_MB = 100.0, 0.25


def tuner(**settings) -> FusionTuner:
    return FusionTuner(start_mb=25.0, smallest_mb=SMALLEST_MB, largest_mb=TOTAL_MB, **settings)


def step_time(size: float, latency: float, cost: float) -> float:
    """Start-up costs of all buckets and a last bucket that nothing hides; least at sqrt(latency * total / cost)."""
    return 0.1 + latency * TOTAL_MB / size + cost * size


@pytest.mark.parametrize("noise", [0.0, 0.01])
@pytest.mark.parametrize("seed", range(10))
def test_the_size_found_is_within_two_percent_of_the_best_one(seed, noise):
    rng = np.random.default_rng(seed)
    latency, cost = 10 ** rng.uniform(-4, -2), 10 ** rng.uniform(-3.2, -2.2)
    best = min(max(sqrt(latency * TOTAL_MB / cost), SMALLEST_MB), TOTAL_MB)
    search = tuner()
    while not search.done:
        search.observe(step_time(search.bucket_mb, latency, cost) * (1 + noise * rng.standard_normal()))
    assert step_time(search.bucket_mb, latency, cost) < 1.02 * step_time(best, latency, cost)
    assert len(search.trials) <= 12


def test_where_the_size_does_not_matter_the_search_ends_after_its_first_trials():
    rng = np.random.default_rng(0)
    search = tuner()
    while not search.done:
        search.observe(0.1 * (1 + 0.001 * rng.standard_normal()))
    assert len(search.trials) <= 4
    assert search.expected_gain < 0.01


def test_the_first_step_with_a_new_size_is_not_counted():
    search = tuner(steps=3)
    for time in (9.0, 1.0, 1.0, 1.0):
        search.observe(time)
    assert search.trials == [Trial(25.0, 1.0, 0.0)]


def test_where_the_start_is_nearly_the_largest_size_the_first_trials_lie_apart():
    search = FusionTuner(start_mb=60.0, smallest_mb=SMALLEST_MB, largest_mb=64.0, steps=2)
    while len(search.trials) < 3:
        search.observe(1.0)
    first, second, third = (trial.bucket_mb for trial in search.trials)
    assert first == 60.0
    assert 64 / 20 < second < 64 / 12
    assert 64 / 5 < third < 64 / 3


def test_it_says_when_the_size_has_changed():
    search = tuner(steps=2)
    assert [search.observe(1.0) for _ in range(3)] == [False, False, True]


def test_a_search_that_is_taken_up_again_goes_on_as_if_it_had_not_stopped():
    def run(search: FusionTuner) -> list[Trial]:
        while not search.done:
            search.observe(step_time(search.bucket_mb, 1e-3, 1e-3))
        return search.trials

    whole = run(tuner())
    assert run(tuner(trials=whole[:3])) == whole


def test_it_ends_after_the_most_trials():
    rng = np.random.default_rng(1)
    search = tuner(most=5, gain=0.0)
    while not search.done:
        search.observe(step_time(search.bucket_mb, 1e-3, 1e-3) * (1 + 0.2 * rng.standard_normal()))
    assert len(search.trials) == 5


def test_a_missing_library_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.gaussian_process", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'hpcpipe\[tune\]'"):
        tuner()
