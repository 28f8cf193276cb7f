"""From a run's log to what the simulator needs: how long each task and message took, whatever schedule comes next.

It reads times only; which schedule they are put under is the simulation's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from hpcpipe.analyze.rows import computed_again
from hpcpipe.analyze.windows import AnalysisError
from hpcpipe.events import Events, RankLog, RunLog
from hpcpipe.job import Job
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import FLAG_BACKWARD, Kind, Placement, Task
from hpcpipe.plan.check import needs
from hpcpipe.simulate import (
    Cut,
    Edge,
    MessagesAsRecorded,
    Place,
    RecordedMessages,
    RecordedTimes,
    Scenario,
    simulate_run,
)
from hpcpipe.simulate.costs import Costs
from hpcpipe.tune import Grouping, batch_of, with_grouping

_BUSY = (Kind.F, Kind.B, Kind.W, Kind.UPDATE, Kind.DATA, Kind.CHECKPOINT)
_TASKS = (Kind.F, Kind.B, Kind.W, Kind.UPDATE)
_BESIDE = (Kind.RS, Kind.AG)
_SIZED = (Kind.F, Kind.B, Kind.W)


@dataclass(frozen=True, slots=True)
class Recording:
    """One replica's steps of a run. `job` is grouped as they were, and `notes` say so where the run's file did not.

    `step_ns` is how long each step took on the wall clock, from one end of a step to the next, for checking a
    simulation; the first of `steps` has none, because the run was not warm before it.
    """

    job: Job
    steps: tuple[int, ...]
    step_ns: dict[int, int]
    times: dict[Place, int]
    messages: MessagesAsRecorded
    buckets: tuple[int, ...]
    replicated: bool
    notes: tuple[str, ...] = ()

    def own_errors(self) -> list[float]:
        """Return for each step the relative error of its simulated length under the run's own schedule.

        The first step is left out: what the stages did before it is not known.
        """
        unsized = self.costs_for(self.job, (0.0,) * self.job.parallel.pipeline)
        scenario = Scenario(
            schedule_of(self.job),
            unsized.times,
            self.messages,
            self.buckets,
            self.replicated,
            phased=not self.job.comm.split_allreduce,
            norm=self.job.has_norm,
        )
        run = simulate_run(scenario, self.steps)
        lengths = zip(run.numbers[1:], run.window_ns[1:], strict=True)
        return [ns / self.step_ns[step] - 1.0 for step, ns in lengths if step in self.step_ns]

    def costs_for(self, job: Job, activation_bytes: Sequence[float]) -> Costs:
        """Return what a job would meet that may be cut otherwise; the bytes of activations are not in a log."""
        before, after = _cut(self.job), _cut(job)
        same = before.stages == after.stages
        assumptions = [
            f"times of tasks and messages as steps {self.steps[0]} to {self.steps[-1]} of the run recorded them",
            *self.notes,
        ]
        if not same:
            assumptions.append(f"the work of {before.stages} stages is dealt out evenly to {after.stages}")
        if before.chunks != after.chunks:
            assumptions.append("chunks of a stage take even shares of its time")
        if after.split and not before.split:
            assumptions.append("half of a recorded backward is the weight gradient")
        if job.batch.microbatches > self.job.batch.microbatches:
            assumptions.append("micro-batches beyond the recorded ones repeat them")
        if job.gathers_early:  # simulated so, they make a run's own steps longer than they were
            assumptions.append("gathers come after all reduce-scatters: recorded exchanges contain waits for others")
        size, wanted = self.job.batch.microbatch_size, job.batch.microbatch_size
        if size != wanted:
            ours = f"batch.microbatches={self.job.batch.microbatches} --set batch.microbatch_size={size}"
            assumptions.append(
                f"times of tasks in proportion: the recorded micro-batches are of {size}, the job's of {wanted}; "
                f"--set {ours} asks for those of the run"
            )
        return Costs(
            times=RecordedTimes(_resized(self.times, wanted / size), self.job.batch.microbatches, before, after),
            messages=self.messages,
            activation_bytes=tuple(activation_bytes),
            buckets=self.buckets if same else (max(self.buckets),) * after.stages,
            assumptions=tuple(assumptions),
        )


def _cut(job: Job) -> Cut:
    return Cut(job.parallel.pipeline, job.chunks, job.splits)


def record(run: RunLog, steps: tuple[int | None, int | None] | None = None, *, most: int = 50) -> Recording:
    """Read the times of a run's first replica.

    Parameters
    ----------
    steps
        First and last step, both included; None on a side takes all there are.
    most
        How many steps at most, the last ones.

    Raises
    ------
    AnalysisError
        The log lacks a stage, or has fewer than two whole steps.
    """
    asked = Job.from_resolved(run.header.job_toml)
    ranks = {rank.header.stage: rank for rank in run.ranks if rank.header.coords[1:] == (0, 0)}
    missing = [stage for stage in range(asked.parallel.pipeline) if stage not in ranks]
    if missing:
        raise AnalysisError(f"{run.path}: no log of stage {missing[0]}: a run is re-simulated only as a whole")
    chosen, grouping = _alike(run, asked, ranks, _steps(run, ranks, steps)[-most:])
    usual = Grouping(asked.schedule.k, asked.batch.microbatch_size)
    job, notes = (asked, ()) if grouping == usual else (with_grouping(asked, grouping), (_note(asked, grouping),))
    times: dict[Place, int] = {}
    ends: dict[Place, int] = {}
    for stage, rank in ranks.items():
        events = _without_repeats(rank.events, chosen)
        for place, spent, end in _spent(stage, events):
            times[place], ends[place] = spent, end
    times |= _norms({stage: _without_repeats(rank.events, chosen) for stage, rank in ranks.items()})
    return Recording(
        job=job,
        steps=tuple(chosen),
        step_ns=_step_ns(ranks, chosen),
        times=times,
        messages=MessagesAsRecorded(_messages(job.placement, ranks, chosen, ends)),
        buckets=tuple(_num_buckets(ranks[stage].events, chosen[-1]) for stage in range(job.parallel.pipeline)),
        replicated=job.parallel.data > 1,
        notes=notes,
    )


def _steps(run: RunLog, ranks: dict[int, RankLog], wanted: tuple[int | None, int | None] | None) -> list[int]:
    first, last = wanted or (None, None)
    common = set.intersection(*(set(rank.steps.step.tolist()) for rank in ranks.values()))
    steps = sorted(s for s in common if (first is None or s >= first) and (last is None or s <= last))
    if len(steps) < 2:
        raise AnalysisError(f"{run.path}: a re-simulation needs two whole steps at least, found {len(steps)}")
    return steps


def _step_ns(ranks: dict[int, RankLog], steps: list[int]) -> dict[int, int]:
    end = {step: max(int(r.steps.t_end[r.steps.step == step][0]) for r in ranks.values()) for step in steps}
    return {step: end[step] - end[before] for before, step in pairwise(steps) if before + 1 == step}


def _spent(stage: int, events: Events) -> Iterator[tuple[Place, int, int]]:
    """Yield every task with the time that it kept its stage busy, and its end.

    An exchange that shared the network with the one before counts from that one's end, as if they had taken turns. What
    the rank did between the end of the row before and the task's start (polling, choosing, logging, reading data)
    counts with the task, unless the rank was waiting.
    """
    rows = events.take(np.isin(events.kind, _BESIDE))
    rows = rows.take(np.argsort(rows.t_end, kind="stable"))
    free = 0
    for step, kind, bucket, start, end in zip(
        *_lists(rows, "step", "kind", "microbatch", "t_start", "t_end"), strict=True
    ):
        yield Place(step, stage, Task(Kind(kind), bucket)), end - max(start, min(free, end)), end
        free = end
    rows = events.take(np.isin(events.kind, (*_BUSY, Kind.WAIT)))
    rows = rows.take(np.lexsort((rows.t_end, rows.t_start)))
    before: int | None = None
    carried = 0
    names = ("step", "kind", "microbatch", "chunk", "t_start", "t_end")
    for step, number, microbatch, chunk, start, end in zip(*_lists(rows, *names), strict=True):
        if number == Kind.WAIT:
            carried = 0
        else:
            carried += end - (start if before is None else min(before, start))
            if number in _TASKS:
                yield Place(step, stage, Task(Kind(number), microbatch, chunk)), carried, end
                carried = 0
        before = end


def _norms(events: dict[int, Events]) -> dict[Place, int]:
    """Return how long each step's norm took on a stage once the last stage had come to it."""
    rows: list[tuple[int, int, int, int]] = []
    for stage, all_kinds in events.items():
        norms = all_kinds.take(all_kinds.kind == Kind.NORM)
        rows += [(stage, *row) for row in zip(*_lists(norms, "step", "t_start", "t_end"), strict=True)]
    last: dict[int, int] = {}
    for _, step, start, _ in rows:
        last[step] = max(start, last.get(step, start))
    return {Place(step, stage, Task(Kind.NORM, 0)): max(0, end - last[step]) for stage, step, _, end in rows}


class _Seen(NamedTuple):
    """A message: what passed until it was noticed, and until the poll before that, which did not see it yet."""

    edge: Edge
    noticed: int
    unseen: int
    awaited: bool


def _messages(
    placement: Placement, ranks: dict[int, RankLog], steps: list[int], ends: dict[Place, int]
) -> RecordedMessages:
    """Return how long each message took from the end of the task that made it until its receiver could see it.

    A receiver that waits sees a message at once. One that is busy polls between two tasks, so its message came between
    two polls: there what is usual on the edge stands in, as far as these bounds allow.
    """
    seen: dict[Place, _Seen] = {}
    for stage, rank in ranks.items():
        for task, step, message in _received(rank, steps):
            source = next((need for need in needs(stage, task, placement) if need[0] != stage), None)
            end = ends.get(Place(step, *source)) if source else None
            if source and end is not None:
                noticed, polled, awaited = message
                edge = Edge(source[0], stage)
                seen[Place(step, stage, task)] = _Seen(edge, max(0, noticed - end), max(0, polled - end), awaited)
    by_edge: dict[Edge, list[int]] = {}
    for message_seen in seen.values():
        if message_seen.awaited:
            by_edge.setdefault(message_seen.edge, []).append(message_seen.noticed)
    usual = {edge: round(median(took)) for edge, took in by_edge.items()}
    anywhere = round(median(usual.values())) if usual else 0
    times = {
        place: each.noticed if each.awaited else min(each.noticed, max(each.unseen, usual.get(each.edge, anywhere)))
        for place, each in seen.items()
    }
    return RecordedMessages(times, usual, anywhere)


def _received(rank: RankLog, steps: list[int]) -> Iterator[tuple[Task, int, tuple[int, int, bool]]]:
    """Yield each message: the task that it feeds, its step, and when it was noticed, not yet seen, and if awaited."""
    events = _without_repeats(rank.events, steps)
    waits = events.take(events.kind == Kind.WAIT)
    received = events.take(events.kind == Kind.RECV)
    order = np.argsort(waits.t_start, kind="stable")
    begun, ended = waits.t_start[order], waits.t_end[order]
    index = np.searchsorted(begun, received.t_end, side="left") - 1
    awaited = (index >= 0) & (ended[np.maximum(index, 0)] >= received.t_end) if len(begun) else index >= 0
    started = np.sort(events.t_start[np.isin(events.kind, _TASKS)])
    before = np.searchsorted(started, received.t_end, side="left") - 1
    polled = started[np.maximum(before, 0)] if len(started) else received.t_start
    rows = _lists(received, "step", "microbatch", "chunk", "flags", "t_end")
    for (step, microbatch, chunk, flags, noticed), unseen, waited in zip(
        zip(*rows, strict=True), polled.tolist(), awaited.tolist(), strict=True
    ):
        kind = Kind.B if flags & FLAG_BACKWARD else Kind.F
        yield Task(kind, microbatch, chunk), step, (noticed, unseen, waited)


def _without_repeats(events: Events, steps: list[int]) -> Events:
    """Return the rows of some steps, without forwards that were done again: they are time of their backward's."""
    return events.take(np.isin(events.step, steps) & ~computed_again(events.kind, events.flags))


def _num_buckets(events: Events, step: int) -> int:
    buckets = events.microbatch[(events.kind == Kind.UPDATE) & (events.step == step)]
    return int(buckets.max()) + 1 if len(buckets) else 0


def _alike(run: RunLog, job: Job, ranks: dict[int, RankLog], steps: list[int]) -> tuple[list[int], Grouping]:
    """Return the last of some steps that follow each other with the same buckets and grouping, and the grouping.

    A search for the size of buckets and the choice of a grouping change them on the way.
    """
    events = [rank.events for rank in ranks.values()]
    groups = dict(zip(ranks[0].steps.step.tolist(), ranks[0].steps.k.tolist(), strict=True))

    def made(step: int) -> tuple[list[int], Grouping]:
        buckets = [_num_buckets(of_stage, step) for of_stage in events]
        return buckets, _grouping(job, ranks[0].events, step, groups[step])

    for (_, grouping), found in reversed([(key, list(each)) for key, each in groupby(steps, made)]):
        if len(found) > 1:
            return found, grouping
    raise AnalysisError(
        f"{run.path}: no two of steps {steps[0]} to {steps[-1]} in a row had the same micro-batches and buckets; "
        "a re-simulation needs two, choose other steps"
    )


def _grouping(job: Job, events: Events, step: int, k: int) -> Grouping:
    """Return how a step was grouped; the caps that were chosen with it are not in a log."""
    usual, batch = Grouping(job.schedule.k, job.batch.microbatch_size), batch_of(job)
    if job.tune.grouping == "off":
        return usual
    first = events.take((events.step == step) & (events.kind == Kind.F) & (events.chunk == 0))
    count = len(np.unique(first.microbatch))
    return Grouping(k or usual.k, batch // count if count and batch % count == 0 else usual.microbatch_size)


def _note(job: Job, grouping: Grouping) -> str:
    before = f"k = {job.schedule.k} and {job.batch.microbatches} of {job.batch.microbatch_size}"
    words = f"k = {grouping.k} and {grouping.microbatches(batch_of(job))} micro-batches of {grouping.microbatch_size}"
    found = f"the run changed its grouping: these steps have {words}, its job file {before}"
    if job.schedule.dispatch == "fixed":
        return found
    return f"{found}; the caps chosen with it are not in the log, equal-memory stands in"


def _resized(times: dict[Place, int], factor: float) -> dict[Place, int]:
    if factor == 1.0:
        return times
    return {place: round(ns * factor) if place.task.kind in _SIZED else ns for place, ns in times.items()}


def _lists(rows: Events, *names: str) -> list[list[int]]:
    return [getattr(rows, name).tolist() for name in names]
