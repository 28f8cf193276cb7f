"""The search by runs, on virtual runs whose best grouping is known from trying them all."""

import pytest
from virtual_training import MS, Training

from hpcpipe.tune import Grouping, Report, read_rows
from hpcpipe.tune.offline import CannotTuneError, Tuning, tune


class Runs:
    """Runs groupings of a virtual training, three steps each."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.ran: list[Grouping] = []

    def measure(self, grouping: Grouping) -> list[Report]:
        self.ran.append(grouping)
        reports = []
        for step in range(3):
            compiled, result = self.training.truth(step, grouping)
            report = read_rows(self.training._measure(compiled, result), stages=self.training.stages)
            assert report is not None
            reports.append(report)
        return reports

    def tune(self, **settings: object) -> Tuning:
        training = self.training
        options = {"start": Grouping(1, 1), "rounds": 1, **settings}
        return tune(training.space, base=training.base, batch=training.batch, measure=self.measure, **options)


@pytest.mark.parametrize("fixed_ms", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("delay", [0.05, 3.0, 12.0])
def test_the_best_of_all_groupings_is_found_with_a_few_runs(fixed_ms: float, delay: float) -> None:
    runs = Runs(Training(stages=4, batch=16, forward_ms=1.0, fixed_ms=fixed_ms, sizes=None, delay=lambda *_: delay))
    tuning = runs.tune()
    best, _ = runs.training.best(0)
    assert tuning.line(tuning.best).measured_ns <= 1.01 * best * MS
    assert len(runs.ran) <= 8 < len(runs.training.space.candidates)
    assert len(set(runs.ran)) == len(runs.ran)


def test_of_groupings_that_are_as_fast_the_leanest_is_best() -> None:
    runs = Runs(Training(stages=4, batch=16, forward_ms=5.0, delay=lambda *_: 0.0))
    assert runs.tune().best == Grouping(1, 1)


def test_no_more_runs_are_made_than_allowed_and_the_best_are_run_again_in_turn() -> None:
    runs = Runs(Training(stages=4, batch=16, forward_ms=5.0, delay=lambda *_: 6.0))
    tuning = runs.tune(runs=2, rounds=3)
    assert runs.ran == [Grouping(1, 1), *[runs.ran[1]] * 3]
    assert tuning.line(runs.ran[1]).steps == 9


def test_a_start_that_does_not_fit_gives_way_to_the_leanest() -> None:
    runs = Runs(Training(stages=2, batch=4, limit=2))
    assert runs.tune(start=Grouping(4, 1)).start == Grouping(1, 1)


def test_a_run_that_fails_is_left_out_with_its_reason_and_the_search_goes_on() -> None:
    runs = Runs(Training(stages=4, batch=16, forward_ms=5.0, delay=lambda *_: 6.0))
    measure = runs.measure
    runs.measure = lambda grouping: None if grouping.k == 2 else measure(grouping)  # type: ignore[method-assign]
    tuning = runs.tune()
    assert tuning.best.k == 4
    assert next(p.reason for p in tuning.pruned if p.grouping == Grouping(2, 1)) == "its run failed"


def test_a_second_run_that_fails_leaves_what_the_first_one_measured() -> None:
    runs = Runs(Training(stages=4, batch=16, forward_ms=5.0, delay=lambda *_: 6.0))
    measure = runs.measure
    runs.measure = lambda each: None if each in runs.ran else measure(each)  # type: ignore[method-assign]
    tuning = runs.tune(rounds=2)
    assert tuning.line(tuning.best).steps == 3
    assert not any(pruned.reason == "its run failed" for pruned in tuning.pruned)


def test_a_first_run_that_fails_ends_the_search() -> None:
    training = Training(stages=2, batch=4)
    with pytest.raises(CannotTuneError, match="k = 1, b = 1 gave no times"):
        tune(training.space, base=training.base, batch=4, start=Grouping(1, 1), measure=lambda _: None)


def test_every_grouping_is_either_in_the_table_or_left_out_with_a_reason() -> None:
    training = Training(stages=3, batch=12, forward_ms=2.0, limit=24, sizes=None, delay=lambda *_: 1.0)
    tuning = Runs(training).tune()
    shown = [line.candidate.grouping for line in tuning.lines]
    left_out = [pruned.grouping for pruned in tuning.pruned]
    assert (
        len(set(shown + left_out))
        == len(shown) + len(left_out)
        == len(training.space.candidates) + len(training.space.pruned)
    )
    assert all(pruned.reason for pruned in tuning.pruned)
