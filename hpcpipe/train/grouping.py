"""The grouping of every step on this rank: group size k, micro-batch size and caps, and what follows from them.

A change is told to whoever has to prepare for it, between two steps and one step before it holds, on all ranks alike;
why no message is lost meanwhile stands in runtime/reserve.py. Who decides on a change is not known here.

The samples of a step and their order do not depend on the grouping, and a loss is divided by what the whole step
counts. With ordered accumulation k changes no bit. The size of micro-batches changes how sums are rounded, and which
numbers dropout draws: those follow the number of the micro-batch in its step.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hpcpipe.checkpoint import Manifest
from hpcpipe.job import Job
from hpcpipe.plan.by_step import ByStep
from hpcpipe.train.layout import Layout
from hpcpipe.tune import Decision, Grouping, Space, batch_of, grouping_of, with_grouping

_K, _SIZE, _CAP = "grouping_k", "grouping_microbatch_size", "grouping_cap_"


@dataclass(frozen=True, slots=True)
class Grouped:
    """A job as if its file asked for the grouping, and its layout."""

    job: Job
    layout: Layout

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step on each replica."""
        return self.layout.schedule.microbatches


class Groupings:
    """What holds at each step.

    Parameters
    ----------
    first
        What holds from the first step on.
    """

    def __init__(self, first: Grouped) -> None:
        self.first = first
        self._by_step = ByStep(first)
        self._known: dict[Grouping, Grouped] = {}
        self._followers: list[Callable[[int, Grouped], None]] = []

    def at(self, step: int) -> Grouped:
        """Return what holds at a step: one of the last two, or any later one as far as it is known."""
        return self._by_step.at(step)

    def follow(self, follower: Callable[[int, Grouped], None]) -> None:
        """Have every change told, with the step from which on it holds."""
        self._followers.append(follower)

    def change(self, step: int, grouping: Grouping) -> None:
        """Have another grouping from a step on; to be called on all ranks before step - 1 begins.

        Raises
        ------
        ValueError
            It does not keep the samples of a step.
        """
        if grouping not in self._known:
            self._known[grouping] = grouped(self.first.job, self.first.layout, grouping)
        now = self._known[grouping]
        self._by_step.change(step, now)
        for follower in self._followers:
            follower(step, now)


def first_grouping(
    job: Job, resumed: Manifest | None, *, space: Callable[[Job], Space] | None = None
) -> Decision | None:
    """Return the grouping that a resumed run begins with, None where that is what the job's file says.

    A run whose file is as it was goes on with what had been chosen; what had been measured is measured again. If the
    file asks for another grouping than then, that is what counts, and so it is where none is chosen any more, or where
    the chosen one is not among those of the job's `space`.
    """
    if resumed is None or _K not in resumed.numbers or job.tune.grouping == "off":
        return None
    numbers, asked = resumed.numbers, grouping_of(job)
    caps = tuple(int(numbers[name]) for name in sorted(numbers, key=_by_stage) if name.startswith(_CAP))
    chosen = Grouping(int(numbers[_K]), int(numbers[_SIZE]), caps)
    if (then := grouping_of(Job.from_resolved(resumed.job_toml))) != asked:
        reason = f"the checkpoint had {chosen}, but the job's file asks for another grouping than then ({then})"
    elif space is not None and chosen not in [each.grouping for each in space(job).candidates]:
        reason = f"the checkpoint had {chosen}, which is not among those that the job can choose from now"
    else:
        return Decision(resumed.step, chosen, "resume", "the checkpoint's, and the job's file is as it was")
    return Decision(resumed.step, asked, "resume", reason)


def _by_stage(name: str) -> int:
    return int(name.removeprefix(_CAP)) if name.startswith(_CAP) else -1


def numbers_of(grouping: Grouping) -> dict[str, float]:
    """Return a grouping as a checkpoint keeps it."""
    caps = {f"{_CAP}{stage}": float(cap) for stage, cap in enumerate(grouping.caps)}
    return {_K: float(grouping.k), _SIZE: float(grouping.microbatch_size), **caps}


def grouped(job: Job, layout: Layout, grouping: Grouping) -> Grouped:
    """Return a job and its layout with another grouping.

    Raises
    ------
    ValueError
        It does not keep the samples of a step.
    """
    schedule = grouping.schedule(layout.schedule, batch=batch_of(job))
    boundary = -(-layout.boundary_bytes * grouping.microbatch_size // job.batch.microbatch_size)
    return Grouped(with_grouping(job, grouping), replace(layout, schedule=schedule, boundary_bytes=boundary))
