"""Which source a job's schedules come from: constant ones, orders from measured times, or groupings that are chosen.

What each of them does is its own file's (measured.py, regroup.py).
"""

from collections.abc import Mapping

from hpcpipe.job import Job
from hpcpipe.plan import Recorder, Schedule
from hpcpipe.plan.hints import FAMILIES
from hpcpipe.runtime import Place
from hpcpipe.train.grouping import Groupings
from hpcpipe.train.measured import ConstantSchedule, MeasuredSchedule, Source
from hpcpipe.train.regroup import Regrouping


def schedule_source(
    job: Job,
    schedule: Schedule,
    recorder: Recorder,
    *,
    groupings: Groupings,
    place: Place,
    clock_shifts: Mapping[int, int],
    replayed: bool = False,
) -> Source:
    """Return where the schedule of every step comes from; `job` and `schedule` are as the file says.

    A replay chooses no grouping.
    """
    if schedule.hint in FAMILIES and FAMILIES[schedule.hint].profiled:
        return MeasuredSchedule(schedule, recorder, place=place, clock_shifts=clock_shifts)
    if job.tune.grouping == "on" and not replayed:
        return Regrouping(job, schedule, recorder, groupings=groupings, place=place, clock_shifts=clock_shifts)
    return ConstantSchedule(groupings, recorder)
