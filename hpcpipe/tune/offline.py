"""Finds the best grouping by short real runs: measure one, predict all, run the most promising, and so on.

How a run is made and shown is the caller's; this decides which one is next and which is best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from hpcpipe.plan import Schedule
from hpcpipe.tune.candidates import Candidate, Pruned, Space
from hpcpipe.tune.grouping import Grouping
from hpcpipe.tune.meter import Report
from hpcpipe.tune.predict import Measured, Predictor, of_another_size, predict_all

CLOSE = 0.1
"""Candidates that measured within this of the best are run again in turn, so that a drift of the machine meets all."""

SLACK = 0.01
"""A leaner grouping is preferred to the fastest one where it is not slower than by this."""

Measure = Callable[[Grouping], Sequence[Report] | None]
"""Runs a grouping and returns the reports of its steps; None where the run failed."""


@dataclass(frozen=True, slots=True)
class Line:
    """What is known of a candidate; ns, and how many steps were measured."""

    candidate: Candidate
    predicted_ns: int | None
    measured_ns: float | None
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Tuning:
    """The candidates, the leanest first, those left out with reasons, the one that was first, and the best."""

    lines: tuple[Line, ...]
    pruned: tuple[Pruned, ...]
    start: Grouping
    best: Grouping

    def line(self, grouping: Grouping) -> Line:
        """Return the line of a candidate."""
        return next(line for line in self.lines if line.candidate.grouping == grouping)


@dataclass(slots=True)
class _State:
    space: Space
    predictor: Predictor
    measured: Measured
    times: dict[Grouping, list[float]] = field(default_factory=dict)
    failed: dict[Grouping, Pruned] = field(default_factory=dict)

    def run(self, grouping: Grouping, measure: Measure) -> None:
        reports = measure(grouping)
        times = [report.step_ns for report in reports or () if report.step_ns is not None]
        if not times and grouping in self.times:
            return  # what it took when it ran is known
        if not times:
            self.failed[grouping] = Pruned(grouping, "its run failed")
            return
        for report in reports or ():
            self.measured.take(report, grouping.microbatch_size)
        self.times.setdefault(grouping, []).extend(times)

    @property
    def working(self) -> list[Candidate]:
        return [each for each in self.space.candidates if each.grouping not in self.failed]

    def took(self, grouping: Grouping) -> float:
        return median(self.times[grouping])

    def predict(self) -> tuple[dict[Candidate, int], tuple[Pruned, ...]]:
        return predict_all(self.working, self.predictor, self.measured)

    def next(self, margin: float) -> Grouping | None:
        """Return the untried candidate with the shortest prediction, if it could be about as fast as the best.

        The second run is one of another size, which tells how times grow with the micro-batch.
        """
        if others := of_another_size(self.working, self.measured):
            return min(others, key=lambda each: self.predictor.step_ns(each.grouping, self.measured)).grouping
        predicted, _ = self.predict()
        known = [each for each in predicted if each.grouping in self.times]
        off = median(self.took(each.grouping) / predicted[each] for each in known) if known else 1.0
        untried = [each for each in predicted if each.grouping not in self.times]
        best = min(map(self.took, self.times))
        chosen = min(untried, key=predicted.__getitem__, default=None)
        return chosen.grouping if chosen and predicted[chosen] * off <= best * (1 + margin) else None


class CannotTuneError(RuntimeError):
    """Not one run gave times."""


def tune(
    space: Space,
    *,
    base: Schedule,
    batch: int,
    start: Grouping,
    measure: Measure,
    runs: int = 8,
    rounds: int = 2,
    margin: float = 0.03,
) -> Tuning:
    """Return the best grouping of a space and what was learnt on the way.

    Parameters
    ----------
    start
        What runs first; the leanest where it is not in the space.
    runs
        The most candidates that are run.
    rounds
        How often those are run that are close to the best, in turn.
    margin
        A candidate is run if it is predicted to be slower by no more than this than the best so far.

    Raises
    ------
    CannotTuneError
        The first run failed.
    """
    groupings = [candidate.grouping for candidate in space.candidates]
    state = _State(space, Predictor(base, batch=batch), Measured(base.placement.stages))
    first = start if start in groupings else groupings[0]
    state.run(first, measure)
    if not state.times:
        raise CannotTuneError(f"the run with {first} gave no times")
    while len(state.times) + len(state.failed) < runs and (chosen := state.next(margin)) is not None:
        state.run(chosen, measure)
    for _ in range(1, rounds):
        best = min(map(state.took, state.times))
        for grouping in [each for each in state.times if state.took(each) <= best * (1 + CLOSE)]:
            state.run(grouping, measure)
    return _result(state, first)


def _result(state: _State, first: Grouping) -> Tuning:
    predicted, dominated = state.predict()
    best = min(map(state.took, state.times))
    lines = [
        Line(
            candidate,
            predicted.get(candidate),
            state.took(candidate.grouping) if candidate.grouping in state.times else None,
            len(state.times.get(candidate.grouping, ())),
        )
        for candidate in state.space.candidates
        if candidate in predicted or candidate.grouping in state.times
    ]
    winner = next(line for line in lines if line.measured_ns is not None and line.measured_ns <= best * (1 + SLACK))
    left_out = tuple(each for each in dominated if each.grouping not in state.times)
    pruned = (*state.failed.values(), *left_out, *state.space.pruned)
    return Tuning(tuple(lines), pruned, first, winner.candidate.grouping)
