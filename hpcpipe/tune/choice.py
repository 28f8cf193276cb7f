"""Chooses the grouping while a run goes on: predict, try, measure, keep or roll back.

A function of sums that all ranks have and of nothing else, in plain arithmetic, so all of them decide alike and nobody
has to be asked. It must not know how a switch is made.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from hpcpipe.job import Job
from hpcpipe.plan import Schedule
from hpcpipe.tune.candidates import Candidate, Space
from hpcpipe.tune.edges import BurstDetector
from hpcpipe.tune.grouping import Grouping
from hpcpipe.tune.meter import Report, read_rows
from hpcpipe.tune.predict import Measured, Predictor, of_another_size, predict_all

What = Literal["try", "keep", "roll back", "stay", "network", "resume"]

SHARE = 0.0025
"""Of the time of steps, what predictions may take."""
UNIT_NS = 500
"""What a simulation takes for a task or a message, on a slow core."""
MOST_BACKOFF = 5
"""After n failed trials the next look comes 2^n intervals later, with n up to this."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How eager the choice is.

    Parameters
    ----------
    interval
        Steps between two looks at all candidates.
    trial
        Steps that a trial is measured over; the first one after a switch is not counted.
    margin
        A faster grouping is tried where the predicted gain is above this share of the step. One that needs less memory
        is preferred where it loses less than a third of it.
    """

    interval: int = 20
    trial: int = 5
    margin: float = 0.03

    @classmethod
    def of(cls, job: Job) -> "Settings":
        """Return those of a job."""
        return cls(job.tune.interval, job.tune.trial, job.tune.margin)

    @property
    def slack(self) -> float:
        """What may be lost for less memory."""
        return self.margin / 3


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided and why, in a sentence; `grouping` is in force from `step` on."""

    step: int
    grouping: Grouping
    what: What
    why: str


@dataclass(frozen=True, slots=True)
class _Trial:
    before: Grouping
    usual_ns: float
    allowed: float
    """How much longer a step may be than `usual_ns` for the trial to be kept."""


class Chooser:
    """The choice of one run; every rank has its own, and all are in the same state.

    Parameters
    ----------
    space
        What can be chosen from; nothing else ever is.
    base
        The run's schedule, of which a grouping replaces k, micro-batches and caps.
    batch
        Samples of a step on a replica.
    start
        The grouping of the first step.
    delay
        The sums of step n are known when step n + delay - 1 has run, so a decision from them is for step n + delay.

    Raises
    ------
    KeyError
        `start` is not in the space.
    """

    def __init__(
        self, space: Space, *, base: Schedule, batch: int, start: Grouping, settings: Settings, delay: int = 2
    ) -> None:
        self._space, self._settings, self._delay = space, settings, delay
        self._stages = base.placement.stages
        self._predictor = Predictor(base, batch=batch)
        self._measured = Measured(self._stages)
        self._detectors: dict[tuple[int, int], BurstDetector] = {}
        self._times: deque[float] = deque(maxlen=max(settings.interval, settings.trial))
        self._memory = space.find(start).memory
        self._switches: list[tuple[int, Grouping]] = [(0, start)]
        self._trial: _Trial | None = None
        self._failed: dict[Grouping, int] = {}
        self._fails = 0
        self._next_look = self._affordable = 0
        self._said: tuple[Grouping, Grouping] | None = None

    @property
    def current(self) -> Grouping:
        """The grouping that was decided on last; a step or two may still run with the one before."""
        return self._switches[-1][1]

    def grouping(self, step: int) -> Grouping:
        """Return what a step runs with; of past steps only those are known whose sums are still to be taken."""
        for since, grouping in reversed(self._switches):
            if since <= step:
                return grouping
        return self._switches[0][1]

    def take(self, step: int, sums: Sequence[float]) -> Decision | None:
        """Take the sums of all ranks' rows of a step (`Meter.row`); call once a step, in order, on all ranks."""
        report = read_rows(sums, stages=self._stages)
        ran, begun = self.grouping(step), self._switches[-1][0]
        if report is None or (step < begun and len(self._switches) > 1):
            return None
        if len(self._switches) > 1:
            self._switches = self._switches[-1:]
            if step == begun:  # channels and buffers are new
                return None
        return self._take(step, report, ran)

    def _take(self, step: int, report: Report, ran: Grouping) -> Decision | None:
        changes = self._watch(report)
        if changes:
            self._start_over(step)
        self._measured.take(report, ran.microbatch_size)
        if report.step_ns is not None:
            self._times.append(report.step_ns)
        if not changes and any(detector.wavers for detector in self._detectors.values()):
            return None  # the next step says whether the network is another one
        if self._trial is not None:
            return self._judge(step, self._trial) if len(self._times) >= self._settings.trial else None
        enough = 1 if changes else min(3, self._settings.trial)
        decision = None
        if step >= self._next_look and self._measured.known and len(self._times) >= enough:
            decision = self._look(step)
        if not changes:
            return decision
        words = changes[0] + (f", and so on over {len(changes)} edges" if len(changes) > 1 else "")
        if decision is None:
            return Decision(step + self._delay, self.current, "network", words)
        what: What = "network" if decision.what == "stay" else decision.what
        return replace(decision, what=what, why=f"{words}; {decision.why}")

    def _watch(self, report: Report) -> list[str]:
        """Let every edge's detector see the step; return what has changed, in words."""
        floor = 0.02 * (sum(report.forward) + sum(report.backward)) / self._stages
        changes = []
        for (source, target), times in report.edges():
            detector = self._detectors.get((source, target))
            if detector is None:
                detector = self._detectors[source, target] = BurstDetector(floor=max(50_000.0, floor))
            if detector.update((times.median + times.p90) / 2):
                way = "up" if detector.state == "preempted" else "down"
                took = f"{times.median * 1e-6:.3g} ms (p90 {times.p90 * 1e-6:.3g})"
                changes.append(f"messages {source}-{target} take {took}, {way} from {detector.left * 1e-6:.3g}")
        return changes

    def _start_over(self, step: int) -> None:
        """Forget what was measured of another network; a trial under way has nothing to be compared with any more."""
        self._measured.forget_network()
        self._trial = self._said = None
        self._times.clear()
        self._failed.clear()
        self._fails = 0
        self._next_look = max(step, self._affordable)

    def _judge(self, step: int, trial: _Trial) -> Decision:
        tried, took = self.current, median(self._times)
        words = f"steps take {took * 1e-6:.4g} ms with {tried}, {trial.usual_ns * 1e-6:.4g} with {trial.before}"
        self._trial = None
        if took <= trial.usual_ns * (1 + trial.allowed):
            self._fails = 0
            self._next_look = max(step + self._settings.interval, self._affordable)
            return Decision(step + self._delay, tried, "keep", words)
        self._fails += 1
        wait = self._settings.interval << min(self._fails, MOST_BACKOFF)
        self._failed[tried] = step + 2 * wait
        self._next_look = max(step + wait, self._affordable)
        return self._switch(step, trial.before, "roll back", words)

    def _look(self, step: int) -> Decision | None:
        """Predict all candidates; try the leanest of those that are about as fast as the fastest, if it is worth it."""
        settings, now = self._settings, self._space.find(self.current)
        took = median(self._times)
        self._failed = {grouping: until for grouping, until in self._failed.items() if until > step}
        others = [each for each in self._space.candidates if each.grouping not in self._failed]
        if others := of_another_size(others, self._measured):
            unseen = min(others, key=lambda each: self._predictor.step_ns(each.grouping, self._measured)).grouping
            self._trial = _Trial(now.grouping, took, 0.0)
            return self._switch(step, unseen, "try", f"{unseen}, to learn how times grow with the micro-batch")
        predicted = self._predict(step, now, took)
        best = min(predicted.values())
        target = next(each for each, ns in predicted.items() if ns <= best * (1 + settings.slack))
        gain = (predicted[now] - predicted[target]) / max(took, predicted[now])
        words = f"{now.grouping} takes {took * 1e-6:.4g} ms (predicted {predicted[now] * 1e-6:.4g})"
        other = f"{target.grouping} would take {predicted[target] * 1e-6:.4g}"
        leaner = target.memory < now.memory
        if target is not now and (gain > settings.margin or (leaner and gain >= -settings.slack)):
            faster = gain > settings.margin
            self._trial = _Trial(now.grouping, took, 0.0 if faster else settings.slack)
            reason = f"{gain:.1%} of a step to gain" if faster else "about as fast with less memory"
            return self._switch(step, target.grouping, "try", f"{words}, {other}: {reason}")
        if self._said == (now.grouping, target.grouping):
            return None  # as before
        self._said = now.grouping, target.grouping
        reason = f"{other}: {gain:.1%} is not worth a trial" if target is not now else "nothing leaner is about as fast"
        return Decision(step + self._delay, now.grouping, "stay", f"{words}, {reason}")

    def _predict(self, step: int, now: Candidate, took: float) -> dict[Candidate, int]:
        """Return the predicted steps, the leanest first; what has failed lately is left out."""
        tempting = [each for each in self._space.candidates if each.grouping not in self._failed]
        predicted, _ = predict_all(tempting, self._predictor, self._measured, always=now)
        cost = sum(self._predictor.cost(each.grouping) for each in predicted)
        self._affordable = step + round(cost * UNIT_NS / (SHARE * took))
        self._next_look = max(step + self._settings.interval, self._affordable)
        return predicted

    def _switch(self, step: int, grouping: Grouping, what: What, why: str) -> Decision:
        since = step + self._delay
        self._said = None
        self._switches.append((since, grouping))
        self._times.clear()
        self._detectors.clear()  # with another grouping messages may take another time
        return Decision(since, grouping, what, why)
