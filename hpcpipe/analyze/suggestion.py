"""Which schedule suits the times of a job, and what it would bring: the advice of plan/advice.py, simulated.

Where the times come from is not known here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpcpipe.analyze.prediction import Prediction, predict
from hpcpipe.job import Job
from hpcpipe.job.variant import with_settings
from hpcpipe.plan import Advice, Kind, OnlineProfile, Profile, Task, advise, gather
from hpcpipe.plan.profile import KINDS
from hpcpipe.simulate.costs import Costs

LEAST_GAIN = 0.02
"""Below this share of the step nothing is suggested."""

CostsOf = Callable[[Job], Costs]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Settings, and what a step is predicted to take and a stage to hold with them (in whole micro-batches, at most).

    `speedup` is over the job's own schedule.
    """

    settings: tuple[str, ...]
    step_ns: int
    speedup: float
    peak_stash: float

    def to_json(self) -> dict[str, Any]:
        """Return what stands under `suggestion` in `simulate --json`."""
        return {
            "settings": list(self.settings),
            "step_ns": self.step_ns,
            "speedup": self.speedup,
            "peak_stash": self.peak_stash,
        }


def suggest(own: Prediction, costs_of: CostsOf, steps: Iterable[int], *, agreement_ns: int = 0) -> Suggestion | None:
    """Return the advised number of chunks and dispatch of `critical`, if they make the steps of a pipeline shorter.

    None too where the rest of the job does not go with them, or says its orders itself.
    """
    job, numbers = own.job, list(steps)
    if job.parallel.pipeline == 1 or job.tune.grouping == "on" or job.schedule.table is not None:
        return None
    try:
        even = _advised(job, Advice(1, "fixed"))
        advice = advise(profile_of(even, costs_of(even), numbers))
        advised = _advised(job, advice)
        agreed = agreement_ns if advised.schedule.dispatch == "ready" else 0
        found = predict(advised, costs_of(advised), numbers, agreement_ns=agreed)
    except ValueError:
        return None
    if found.step_ns > (1.0 - LEAST_GAIN) * own.step_ns:
        return None
    return Suggestion(_settings(advice), found.step_ns, own.step_ns / max(1, found.step_ns), max(found.peak_stash))


def profile_of(job: Job, costs: Costs, steps: Iterable[int]) -> Profile:
    """Return the profile of a job with one chunk a stage, measured from its costs as a run measures itself.

    Of messages those of forwards count, sent as the sender has done so many forwards and backwards.
    """
    rows = [OnlineProfile(chunks=1) for _ in range(job.parallel.pipeline)]
    measured = []
    for step in steps:
        arrival, sent = costs.messages.of_step(step), [0] * len(rows)
        for microbatch in range(job.batch.microbatches):
            for stage, row in enumerate(rows):
                took = [costs.times.duration(step, stage, Task(kind, microbatch)) for kind in KINDS]
                for kind, ns in zip(KINDS, took, strict=True):
                    row.add(Task(kind, microbatch), max(1, ns))
                if stage:
                    now = sent[stage - 1]
                    row.add_delay(arrival(stage - 1, stage, Task(Kind.F, microbatch), now) - now)
                sent[stage] += sum(took)
        measured = [row.end_step() for row in rows]
    return gather([row for row in measured if row is not None])


def _settings(advice: Advice) -> tuple[str, ...]:
    return "schedule.hint=critical", f"schedule.dispatch={advice.dispatch}", f"parallel.chunks={advice.chunks}"


def _advised(job: Job, advice: Advice) -> Job:
    """Return the job with the advice; ValueError where the rest does not go with it."""
    with_settings(job, _settings(advice))
    schedule = job.schedule.model_copy(update={"hint": "critical", "dispatch": advice.dispatch})
    parallel = job.parallel.model_copy(update={"chunks": advice.chunks})
    return job.model_copy(update={"schedule": schedule, "parallel": parallel})  # knows where its data is
