"""The schedules of a run that chooses its grouping while it goes on: measure, share, choose together, prepare a change.

Every rank measures its own tasks and the messages that it receives, as they pass by on their way to the log: nothing is
sent for it, because every edge of a pipeline carries messages in every step. The rows travel in the all-reduce that
carries the loss, so all ranks choose from the same sums at the same place between two steps, and change at the same
step. What is measured and how is chosen is tune/'s.
"""

from collections.abc import Mapping, Sequence

from hpcpipe.job import Job
from hpcpipe.job.words import show
from hpcpipe.plan import Recorder, Schedule
from hpcpipe.runtime import Place, StepTimes
from hpcpipe.train.batches import evaluates_after
from hpcpipe.train.grouping import Groupings, numbers_of
from hpcpipe.train.measured_events import MeasuredEvents
from hpcpipe.train.memory import stage_memory
from hpcpipe.tune import (
    Chooser,
    Decision,
    Meter,
    NoGroupingFitsError,
    Settings,
    Space,
    batch_of,
    grouping_of,
    space_of,
)

DELAY = 3
"""From the step whose sums decide to the first that is grouped anew. The sums are there when the next step has run, and
the one after that is begun under the old grouping while both ends of every edge prepare (runtime/reserve.py)."""


def space_for(job: Job) -> Space:
    """Return the groupings that a job can choose from.

    Raises
    ------
    NoGroupingFitsError
        Its memory limit is below what every grouping needs.
    """
    return space_of(job, stage_memory(job))


def problem_with_grouping(job: Job) -> str:
    """Return what is wrong with the choice of a grouping as far as only the model's sizes tell, or nothing."""
    if job.tune.grouping == "off":
        return ""
    try:
        space_for(job).find(start := grouping_of(job))
    except NoGroupingFitsError as error:
        return f"{error}; raise [tune] memory_limit, or cut the model into more stages"
    except KeyError:
        limit = show(job.tune.memory_limit)
        return (
            f"the run would begin with {start}, which does not fit into [tune] memory_limit = {limit}; begin with less"
        )
    return ""


class Regrouping:
    """Measures, and has the grouping changed where that is decided.

    Parameters
    ----------
    job, schedule
        As the file says.
    recorder
        Where events go on to.
    groupings
        What holds first, and what is told of changes.
    clock_shifts
        By rank: this rank's clock minus the other's (ns).
    """

    def __init__(
        self,
        job: Job,
        schedule: Schedule,
        recorder: Recorder,
        *,
        groupings: Groupings,
        place: Place,
        clock_shifts: Mapping[int, int],
    ) -> None:
        self._job, self._groupings = job, groupings
        self._grouping = grouping_of(groupings.first.job)
        blind = job.device.kind != "emulated"
        self._meter = Meter(place=place, clock_shifts=clock_shifts, blind=blind)
        self._chooser = Chooser(
            space_for(job),
            base=schedule,
            batch=batch_of(job),
            start=self._grouping,
            settings=Settings.of(job),
            delay=DELAY,
        )
        self.entries = self._meter.entries
        self.recorder: Recorder = MeasuredEvents(recorder, self._meter.measure)
        self._ended = -1

    def of(self, step: int) -> Schedule:
        """Return the schedule of a step."""
        return self._groupings.at(step).layout.schedule

    def row(self, step: int, times: StepTimes) -> Sequence[float]:
        """End a step's measurements and return them; after a checkpoint or an evaluation a step has no length."""
        length = 0 if self._ended < 0 or self._is_disturbed(step) else times.end - self._ended
        self._ended = times.end
        return self._meter.row(length)

    def take(self, step: int, sums: Sequence[float]) -> Sequence[Decision]:
        """Take the sums of a step's rows, the same on all ranks, and begin the change that they lead to."""
        decision = self._chooser.take(step, sums)
        if decision is None:
            return ()
        if decision.grouping != self._grouping:
            self._grouping = decision.grouping
            self._groupings.change(decision.step, decision.grouping)
        return (decision,)

    def numbers(self) -> Mapping[str, float]:
        """Return the newest grouping, with which a resumed run begins."""
        return numbers_of(self._grouping)

    def _is_disturbed(self, step: int) -> bool:
        """Whether something else than training may have been done between the step before and this one."""
        every = self._job.checkpoint.steps
        return evaluates_after(self._job, step - 1) or (every is not None and step % every == 0)
