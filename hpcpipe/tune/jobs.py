"""Between jobs and groupings: what a job says, what it would say with another one, and what it may choose from."""

from collections.abc import Sequence

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.job.planned import schedule_of
from hpcpipe.tune.candidates import Space, make_space
from hpcpipe.tune.grouping import Grouping, profile
from hpcpipe.tune.memory import StageMemory


def batch_of(job: Job) -> int:
    """Return the samples of a step on one replica."""
    return job.batch.microbatches * job.batch.microbatch_size


def grouping_of(job: Job) -> Grouping:
    """Return the grouping that the job file says; the hint is kfkb."""
    limits = schedule_of(job).limits
    caps = tuple(limit.in_flight for limit in limits if limit.in_flight is not None)
    return Grouping(job.schedule.k, job.batch.microbatch_size, caps)


def with_grouping(job: Job, grouping: Grouping) -> Job:
    """Return the job as if its file said so: hint kfkb with this k and these caps, the same batch cut otherwise.

    On an emulated device times and sizes of messages become those of the new micro-batches: what does not grow with
    them stays, the rest is in proportion.

    Raises
    ------
    ValueError
        The micro-batches do not divide the batch.
    """
    microbatches, stages = grouping.microbatches(batch_of(job)), job.parallel.pipeline
    own = grouping.caps in ((), profile(stages, microbatches, grouping.k))
    changes = {"hint": "kfkb", "k": grouping.k, "in_flight": "equal-memory" if own else grouping.caps}
    changes |= {"stash": "equal-memory"}
    batch = {"microbatches": microbatches, "microbatch_size": grouping.microbatch_size}
    factor = grouping.microbatch_size / job.batch.microbatch_size
    device = resized(job.device, factor) if isinstance(job.device, Emulated) else job.device
    tables = {
        "schedule": job.schedule.model_copy(update=changes),
        "batch": job.batch.model_copy(update=batch),
        "device": device,
    }
    return job.model_copy(update=tables)


def resized(device: Emulated, factor: float) -> Emulated:
    """Return the emulated device with micro-batches `factor` times as large."""
    fixed = device.fixed_ms

    def scaled(times: float | tuple[float, ...], fixed: float) -> float | tuple[float, ...]:
        if isinstance(times, tuple):
            return tuple(fixed + (each - fixed) * factor for each in times)
        return fixed + (times - fixed) * factor

    changes = {
        "forward_ms": scaled(device.forward_ms, fixed),
        "backward_ms": scaled(device.backward_ms, fixed),
        "weight_ms": scaled(device.weight_ms, 0.0),
        "message_bytes": tuple(round(each * factor) for each in device.message_bytes)
        if isinstance(device.message_bytes, tuple)
        else round(device.message_bytes * factor),
    }
    return device if factor == 1 else device.model_copy(update=changes)


def emulated_memory(job: Job) -> tuple[StageMemory, ...]:
    """Return what ranks of an emulated device hold: of every sample in flight its share of a message, nothing else."""
    assert isinstance(job.device, Emulated)
    stages, size = range(job.parallel.pipeline), job.batch.microbatch_size
    return tuple(StageMemory(0.0, job.device.bytes_from(stage) / size) for stage in stages)


def space_of(job: Job, memory: Sequence[StageMemory]) -> Space:
    """Return what a job may choose from while it runs.

    Raises
    ------
    NoGroupingFitsError
        Its memory limit is below what every grouping needs.
    """
    return make_space(
        batch=batch_of(job),
        stages=job.parallel.pipeline,
        memory=memory,
        limit=job.tune.limit_bytes,
        dispatch=job.schedule.dispatch,
        sizes=[job.batch.microbatch_size] if job.tune.microbatch_size == "fixed" else None,
    )
