"""The order in which a run dispatched its tasks, taken from its log and checked to be one that a job can repeat.

It knows what a job's steps consist of, not how they are run.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.events.header import LogHeader
from hpcpipe.events.opening import LogError
from hpcpipe.events.reader import RankLog, find_files, open_run
from hpcpipe.job import Job
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import FLAG_RECOMPUTED, Kind, Task
from hpcpipe.plan.slots import Held, held_in, sources

_BUCKET_KINDS = (Kind.RS, Kind.UPDATE, Kind.AG)
_AFTER_GRADIENTS = (*_BUCKET_KINDS, Kind.NORM)
_KINDS = (Kind.F, Kind.B, Kind.W, *_AFTER_GRADIENTS)
_COLUMNS = ("step", "kind", "microbatch", "chunk", "t_start", "flags")
_KIND, _MICROBATCH, _CHUNK = range(3)

Rows = NDArray[np.int32]


class ReplayError(ValueError):
    """A log that cannot be replayed by this job; the message is for the user."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What one rank dispatched: `tasks` has (kind, micro-batch, chunk) rows, those of step n from `begins[n]` on.

    `groups` has k (0 where the log does not say) and the number of micro-batches of every step.
    """

    tasks: Rows
    begins: NDArray[np.int64]
    buckets: int
    groups: tuple[tuple[int, int], ...] = ()

    @property
    def steps(self) -> int:
        """How many steps are there from the first on."""
        return len(self.begins) - 1

    def order(self, step: int) -> tuple[Task, ...]:
        """Return the tasks of a step in the order of their dispatch."""
        rows = self.tasks[self.begins[step] : self.begins[step + 1]].tolist()
        return tuple(Task(Kind(kind), microbatch, chunk) for kind, microbatch, chunk in rows)


def check_recorded(job: Job, source: Path) -> Path:
    """Refuse a log that does not fit, and return its folder with links followed: `latest` moves on when a run begins.

    Raises
    ------
    ReplayError
        It cannot be replayed by this job.
    """
    try:
        run = open_run(source)
        check_settings(job, run.header, source)
        ranks = {log.rank: log for log in run.ranks}
        missing = [rank for rank in range(job.parallel.ranks) if rank not in ranks]
        if missing:
            raise ReplayError(f"{source}: there is no log of rank {missing[0]}" + "".join(f"; {g}" for g in run.gaps))
        recordings = [record(job, ranks[rank]) for rank in range(job.parallel.ranks)]
    except LogError as error:
        raise ReplayError(str(error)) from error
    check_steps(job, source, [recording.steps for recording in recordings])
    for replica, tensor_slice in {log.header.coords[1:] for log in run.ranks}:
        pipeline = [log for log in run.ranks if log.header.coords[1:] == (replica, tensor_slice)]
        pipeline.sort(key=lambda log: log.header.stage)
        check_slots(job, source, [held_of(job, recordings[log.rank]) for log in pipeline])
    return find_files(source)[0].parent.resolve()


def check_settings(job: Job, header: LogHeader, source: Path) -> None:
    """Refuse (ReplayError) a log whose run did not have this job's tasks."""
    try:
        recorded = Job.from_resolved(header.job_toml)
    except (ValueError, OSError) as error:
        raise ReplayError(f"{source}: its job is not one that this hpcpipe can read: {error}") from error
    if recorded.tune.fusion == "on":
        raise ReplayError(
            f'{source} was recorded with [tune] fusion = "on": the buckets of its steps differ, and a replay has the '
            "same in all; record a run with the bucket_mb that was found"
        )
    if job.tune.fusion == "on":
        raise ReplayError(
            f'{source} was recorded with one bucket size and is replayed with that; add --set tune.fusion="off"'
        )
    for (name, ours), (_, theirs) in zip(_settings(job), _settings(recorded), strict=True):
        if ours != theirs:
            raise ReplayError(
                f"{source} was recorded with {name} = {theirs}, but this job has {ours}; a replay runs the same tasks"
            )


def _settings(job: Job) -> Iterator[tuple[str, Any]]:
    for key in ("pipeline", "data", "tensor", "split"):
        yield f"[parallel] {key}", getattr(job.parallel, key)
    yield "chunks", job.chunks
    yield "the shape of its chunks", job.placement.shape
    yield "[batch] microbatches", job.batch.microbatches
    yield "a backward that is split", job.splits
    for key, value in job.model.model_dump(exclude={"init"}).items():  # the kind first: other kinds have other keys
        yield f"[model] {key}", value
    yield "[comm] bucket_mb", job.comm.bucket_mb
    yield "[comm] split_allreduce", job.comm.split_allreduce
    yield "a norm before the updates ([optimizer] clip, nonfinite)", job.has_norm


def record(job: Job, log: RankLog) -> Recording:
    """Sort the tasks of a log by their dispatch and keep the steps that are whole, from step 0 on."""
    columns = log.rows.read(_COLUMNS)
    which = np.isin(columns["kind"], _KINDS) & (columns["flags"] & FLAG_RECOMPUTED == 0)
    step, start = columns["step"][which], columns["t_start"][which]
    by_dispatch = np.lexsort((np.arange(len(step)), start, step))
    step = step[by_dispatch]
    tasks = np.stack([columns[name][which][by_dispatch] for name in ("kind", "microbatch", "chunk")], axis=1)
    tasks = tasks.astype(np.int32)
    updates = tasks[tasks[:, _KIND] == Kind.UPDATE, _MICROBATCH]
    buckets = int(updates.max()) + 1 if len(updates) else 0
    reduced = set(tasks[tasks[:, _KIND] == Kind.RS, _MICROBATCH].tolist())
    known = dict(zip(log.steps.step.tolist(), log.steps.k.tolist(), strict=True))
    begins, groups = [0], []
    wanted: dict[int, NDArray[np.int64]] = {}
    for number in range(int(step[-1]) + 1 if len(step) else 0):
        first, end = np.searchsorted(step, (number, number + 1))
        mine = tasks[first:end]
        microbatches = _microbatches_of(job, mine)
        if microbatches not in wanted:
            every = list(_wanted(job, microbatches, buckets, reduced))
            wanted[microbatches] = _codes(np.array(every, dtype=np.int32))
        if first != begins[-1] or not np.array_equal(_codes(mine), wanted[microbatches]):
            break
        _check_weights(job, mine, step=number, rank=log.rank)
        begins.append(int(end))
        groups.append((known.get(number, 0), microbatches))
    return Recording(tasks, np.array(begins), buckets, tuple(groups))


def _microbatches_of(job: Job, tasks: Rows) -> int:
    """Return how many micro-batches a step had: those of the job, unless it changes their size while it runs."""
    usual = job.batch.microbatches
    if job.tune.grouping == "off" or job.tune.microbatch_size == "fixed":
        return usual
    found = int(np.count_nonzero((tasks[:, _KIND] == Kind.F) & (tasks[:, _CHUNK] == 0)))
    return found if found and usual * job.batch.microbatch_size % found == 0 else usual


def _wanted(job: Job, microbatches: int, buckets: int, reduced: Set[int]) -> Iterator[Task]:
    """Yield the tasks of a step; `reduced` are the buckets that other ranks have a part in (replicas, ties)."""
    kinds = (Kind.F, Kind.B, Kind.W) if job.splits else (Kind.F, Kind.B)
    for chunk in range(job.chunks):
        yield from (Task(kind, microbatch, chunk) for kind in kinds for microbatch in range(microbatches))
    for bucket in range(buckets):
        shared = job.parallel.data > 1 or bucket in reduced
        yield from (Task(kind, bucket) for kind in (_BUCKET_KINDS if shared else (Kind.UPDATE,)))
    if job.has_norm:
        yield Task(Kind.NORM, 0)


def _codes(tasks: Rows) -> NDArray[np.int64]:
    """Return sorted numbers that are equal for the same tasks only."""
    wide = tasks.astype(np.int64)
    return np.sort((wide[:, _KIND] << 56) | (wide[:, _CHUNK] << 40) | wide[:, _MICROBATCH])


def _check_weights(job: Job, tasks: Rows, *, step: int, rank: int) -> None:
    if job.schedule.accumulate != "ordered":
        return
    for chunk in range(job.chunks):
        mine = tasks[(tasks[:, _KIND] == Kind.W) & (tasks[:, _CHUNK] == chunk), _MICROBATCH].tolist()
        wrong = next(((before, after) for before, after in pairwise(mine) if after < before), None)
        if wrong is not None:
            before, after = (Task(Kind.W, microbatch, chunk) for microbatch in wrong)
            raise ReplayError(
                f'in step {step} rank {rank} ran {before} before {after}, which accumulate = "ordered" never lets run '
                'so; set accumulate = "arrival"'
            )


def check_steps(job: Job, source: Path, steps: Sequence[int]) -> None:
    """Refuse (ReplayError) a job of more steps than the ranks have recorded."""
    fewest = min(steps)
    if fewest >= job.run.steps:
        return
    rank = steps.index(fewest)
    if fewest == 0:
        raise ReplayError(f"{source}: the log of rank {rank} holds no whole step to replay")
    raise ReplayError(
        f"{source}: the log of rank {rank} holds {fewest} whole steps, but this job runs {job.run.steps}, and only "
        f"what was recorded can be replayed; add --set job.steps={fewest}"
    )


def held_of(job: Job, recording: Recording) -> tuple[Held, ...]:
    """Return what each chunk of the rank holds at most in the steps of the job."""
    most = [Held(0, 0)] * job.chunks
    for step in range(min(recording.steps, job.run.steps)):
        order = (task for task in recording.order(step) if task.kind not in _AFTER_GRADIENTS)
        found = held_in(order, chunks=job.chunks, split=job.splits)
        most = [Held(*map(max, *pair)) for pair in zip(most, found, strict=True)]
    return tuple(most)


def check_slots(job: Job, source: Path, held: Sequence[Sequence[Held]]) -> None:
    """Refuse (ReplayError) receive slots that an order would fill; `held` is by stage and chunk."""
    slots = job.comm.slots
    if not isinstance(slots, int):
        return
    schedule = schedule_of(job, activation_bytes=[1.0] * job.parallel.pipeline)
    stages = range(job.parallel.pipeline)
    needed = max((each.slots for stage in stages for each in sources(schedule, stage, held=held)), default=0)
    if slots < needed:
        raise ReplayError(
            f"{source}: its order keeps {needed} messages at an edge, which [comm] slots = {slots} cannot hold; set "
            'slots = "auto"'
        )
