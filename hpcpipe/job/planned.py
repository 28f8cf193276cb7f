"""From a job to the schedule of its steps: the one place where settings become a plan."""

from collections.abc import Sequence

from hpcpipe.job.schema import Job
from hpcpipe.plan import Limits, Schedule
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.sizes import SIZE


def needs_sizes(job: Job) -> bool:
    """Return whether a cap is given in bytes, so that the sizes of activations must be known."""
    settings = (job.schedule.in_flight, job.schedule.stash)
    return job.schedule.dispatch == "ready" and any(isinstance(s, str) and SIZE.fullmatch(s) for s in settings)


def schedule_of(job: Job, *, activation_bytes: Sequence[float] | None = None) -> Schedule:
    """Return the schedule; a fixed order needs no caps, it bounds itself.

    Parameters
    ----------
    activation_bytes
        What one micro-batch stashes on each whole stage, needed where a cap is given in bytes.

    Raises
    ------
    ValueError
        A cap cannot be met, or needs `activation_bytes`.
    """
    settings, placement, microbatches = job.schedule, job.placement, job.batch.microbatches
    split = job.splits
    k = settings.k if settings.hint == "kfkb" else None
    if settings.dispatch == "fixed":
        limits: tuple[Limits, ...] = (Limits(),) * placement.stages
    else:
        limits = limits_for(
            placement,
            hint=settings.hint,
            microbatches=microbatches,
            split=split,
            in_flight=settings.in_flight,
            stash=settings.stash if split else None,
            k=k,
            activation_bytes=activation_bytes,
        )
    return Schedule(
        hint=settings.hint,
        dispatch=settings.dispatch,
        placement=placement,
        microbatches=microbatches,
        limits=limits,
        split=split,
        ordered=settings.accumulate == "ordered",
        k=k,
        orders=None if settings.table is None else settings.table.orders,
    )
