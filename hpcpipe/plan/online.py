"""How a stage measures its row of the profile while it trains: medians of each step, smoothed over steps.

Fed with durations that somebody else took; it owns no clock and talks to nobody.
"""

from math import sqrt
from statistics import fmean, median

from hpcpipe.plan.profile import KINDS, StageTimes
from hpcpipe.plan.task import Kind, Task


class OnlineProfile:
    """One stage's running profile.

    Everything here is local. What has to be common is the row of `end_step`: when all stages have exchanged theirs,
    once a step and off the hot path, `gather` makes the profile from which every rank computes the same orders. A rank
    that only ranks its own ready tasks by an order that it keeps needs no exchange at all.

    Parameters
    ----------
    weight
        How much the newest step counts; the rest is the past. A step with a hiccup moves the median little.
    """

    def __init__(self, *, chunks: int, weight: float = 0.3) -> None:
        if not 0.0 < weight <= 1.0:
            raise ValueError(f"weight {weight} of the newest step: it must be above 0 and at most 1")
        self._chunks = chunks
        self._weight = weight
        self._durations: dict[tuple[Kind, int], float] = {}
        self._spread: float | None = None
        self._delay: float | None = None
        self._square = 0.0
        self._messages = 0
        self._new: dict[tuple[Kind, int], list[int]] = {}
        self._new_delays: list[int] = []

    def add(self, task: Task, ns: int) -> None:
        """Note how long a task took; kinds other than F, B and W are of no interest here."""
        if task.kind in KINDS:
            self._new.setdefault((task.kind, task.chunk), []).append(ns)

    def add_delay(self, ns: int) -> None:
        """Note how long after its sending a message could be used, by corrected clocks; a negative one counts as 0."""
        self._new_delays.append(max(0, ns))

    def end_step(self) -> StageTimes | None:
        """Take in the step and return the row; None until every kind has run in every chunk."""
        for lane, times in self._new.items():
            self._durations[lane] = self._blend(self._durations.get(lane), float(median(times)))
        if self._new:
            self._spread = self._blend(self._spread, _relative_deviation(list(self._new.values())))
        if self._new_delays:
            self._square = self._blend(
                None if self._delay is None else self._square, fmean(ns * ns for ns in self._new_delays)
            )
            self._delay = self._blend(self._delay, fmean(self._new_delays))
            self._messages = len(self._new_delays)
        self._new, self._new_delays = {}, []
        lanes = [[(kind, chunk) for chunk in range(self._chunks)] for kind in KINDS]
        if any(lane not in self._durations for kind in lanes for lane in kind):
            return None
        return StageTimes(
            durations=tuple(tuple(self._durations[lane] for lane in kind) for kind in lanes),
            spread=self._spread or 0.0,
            messages=self._messages,
            delay=self._delay or 0.0,
            delay_rms=sqrt(self._square),
        )

    def _blend(self, past: float | None, new: float) -> float:
        return new if past is None else past + self._weight * (new - past)


def _relative_deviation(lanes: list[list[int]]) -> float:
    """Return the standard deviation of all times relative to the mean of their lane."""
    relative = [time / max(1.0, fmean(times)) - 1.0 for times in lanes for time in times]
    return sqrt(fmean(r * r for r in relative))
