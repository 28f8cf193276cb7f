"""What a recorded run would have cost otherwise: other schedules, a network that takes no time, no slow stage.

The recorded times are simulated again; how far the simulation is off on the run itself stands beside every answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median
from typing import Any

from hpcpipe.analyze.prediction import Prediction, predict
from hpcpipe.analyze.recorded import Recording, record
from hpcpipe.analyze.windows import AnalysisError, StepChoice
from hpcpipe.events import RunLog
from hpcpipe.job import Job
from hpcpipe.job.planned import needs_sizes
from hpcpipe.job.schedule_words import what_if_settings
from hpcpipe.job.variant import with_settings
from hpcpipe.plan import Kind, Task
from hpcpipe.simulate.costs import Costs
from hpcpipe.simulate.step import Arrival
from hpcpipe.simulate.times import Times

IDEAL_NETWORK = "ideal-network"
NO_STRAGGLER = "no-straggler"
CHANGES = {
    IDEAL_NETWORK: "messages, reduce-scatters and all-gathers take no time",
    NO_STRAGGLER: "no kind of task takes longer on a stage than on the middle one of the stages (median)",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: `text` as it was typed, settings of the job to change, and which of CHANGES to make."""

    text: str
    settings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with what the run would have cost."""

    question: Question
    prediction: Prediction


@dataclass(frozen=True)
class WhatIf:
    """The answers, the run under its own schedule as it was recorded and as it is simulated, and the assumptions.

    `errors` are the relative errors of the steps of the latter.
    """

    recorded_step_ns: int
    own: Prediction
    errors: tuple[float, ...]
    answers: tuple[Answer, ...]
    assumptions: tuple[str, ...]

    @cached_property
    def own_error(self) -> float | None:
        """Median size of the errors; None where no step could be compared."""
        return median(map(abs, self.errors)) if self.errors else None

    def to_json(self) -> dict[str, Any]:
        """Return what stands under `what_if` in `analyze --json`; `speedup` is over the simulated run itself."""
        return {
            "recorded_step_ns": self.recorded_step_ns,
            "own_error": self.own_error,
            "own": self.own.to_json(self.own.step_ns),
            "results": [
                {
                    "what_if": answer.question.text,
                    "changes": list(answer.question.changes),
                    **answer.prediction.to_json(self.own.step_ns),
                }
                for answer in self.answers
            ],
            "assumptions": list(self.assumptions),
        }


def read_question(text: str) -> Question:
    """Read `HINT[,CAP][,k=N][,DISPATCH]`, `ideal-network`, `no-straggler` or several of them.

    Raises
    ------
    ValueError
        A word is none of these.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    changes = tuple(word for word in words if word in CHANGES)
    rest = [word for word in words if word not in CHANGES]
    if not words:
        raise ValueError(f"nothing is asked; write a hint, {' or '.join(CHANGES)}")
    return Question(text, tuple(what_if_settings(rest)) if rest else (), changes)


def what_if(
    run: RunLog,
    questions: Sequence[Question],
    steps: StepChoice = None,
    *,
    progress: Callable[[], object] = lambda: None,
) -> WhatIf:
    """Simulate the recorded steps (the last 50 at most) as they were and under every question.

    Raises
    ------
    AnalysisError
        The log does not hold what a simulation needs, or a question does not go with the run.
    """
    recording = _record(run, steps)
    own = _predict(recording, recording.job, Question("as recorded"), progress)
    assumptions: dict[str, None] = {}
    answers = []
    for question in questions:
        try:
            job = with_settings(recording.job, question.settings) if question.settings else recording.job
            prediction, costs = _predict(recording, job, question, progress)
        except ValueError as error:
            raise AnalysisError(f"--what-if {question.text}: {error}") from None
        answers.append(Answer(question, prediction))
        assumptions |= dict.fromkeys(costs.assumptions)
        assumptions |= dict.fromkeys(f"{change}: {CHANGES[change]}" for change in question.changes)
    lengths = list(recording.step_ns.values())
    return WhatIf(
        recorded_step_ns=round(median(lengths)) if lengths else own[0].step_ns,
        own=own[0],
        errors=tuple(recording.own_errors()),
        answers=tuple(answers),
        assumptions=tuple(assumptions),
    )


def _record(run: RunLog, steps: StepChoice) -> Recording:
    try:
        return record(run, steps)
    except ValueError:
        raise AnalysisError(
            f"{run.path}: the job in the log is not one of hpcpipe's, so the run cannot be simulated again"
        ) from None


def _predict(
    recording: Recording, job: Job, question: Question, progress: Callable[[], object]
) -> tuple[Prediction, Costs]:
    if needs_sizes(job):
        raise ValueError("a cap in bytes needs the sizes of activations: ask `hpcpipe simulate JOB --from RUN`")
    costs = recording.costs_for(job, (0.0,) * job.parallel.pipeline)
    if IDEAL_NETWORK in question.changes:
        costs = replace(costs, messages=_NoMessages(), times=_WithoutCollectives(costs.times))
    if NO_STRAGGLER in question.changes:
        costs = replace(costs, times=_Evened(costs.times, _factors(recording)))
    return predict(job, costs, recording.steps, progress=progress), costs


def _at_once(_source: int, _target: int, _task: Task, now: int) -> int:
    return now


@dataclass(frozen=True, slots=True)
class _NoMessages:
    """Messages that arrive when they are sent."""

    def of_step(self, _step: int) -> Arrival:
        return _at_once


@dataclass(frozen=True, slots=True)
class _WithoutCollectives:
    times: Times

    def duration(self, step: int, stage: int, task: Task) -> int:
        return 0 if task.kind in (Kind.RS, Kind.AG) else self.times.duration(step, stage, task)


@dataclass(frozen=True, slots=True)
class _Evened:
    """Times in which tasks of slow stages are shortened by a factor a stage and kind."""

    times: Times
    factors: Mapping[tuple[int, Kind], float]

    def duration(self, step: int, stage: int, task: Task) -> int:
        factor = self.factors.get((stage, task.kind), 1.0)
        return round(factor * self.times.duration(step, stage, task))


def _factors(recording: Recording) -> dict[tuple[int, Kind], float]:
    """Return for each stage and kind by what its mean time exceeds the median of the stages', as a factor up to 1."""
    lengths: dict[tuple[int, Kind], list[int]] = {}
    for place, ns in recording.times.items():
        if place.task.kind in (Kind.F, Kind.B, Kind.W):
            lengths.setdefault((place.stage, place.task.kind), []).append(ns)
    means = {key: mean(values) for key, values in lengths.items()}
    middle = {kind: median(value for (_, each), value in means.items() if each is kind) for _, kind in means}
    return {(stage, kind): min(1.0, middle[kind] / value) for (stage, kind), value in means.items() if value}
