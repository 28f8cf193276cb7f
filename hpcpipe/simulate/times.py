"""How long tasks take: from usual times that vary by a model, or as a run recorded them.

It must not know where the numbers come from (job files, FLOPs, logs); times are ns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from hpcpipe.plan import Kind, Task
from hpcpipe.plan.variability import Compute, Steady


class Times(Protocol):
    """The duration of every task."""

    def duration(self, step: int, stage: int, task: Task) -> int:
        """Return ns."""


@dataclass(frozen=True, slots=True)
class UsualTimes:
    """Usual times of whole stages, which a model varies; a chunk takes its share of its stage.

    Parameters
    ----------
    forward, backward, weight
        ns of one micro-batch by stage; `backward` is the whole one, `weight` the part of it that W takes if split.
    update
        ns of the optimizer by stage, all buckets together.
    exchange
        ns of a reduce-scatter or all-gather of all buckets by stage.
    norm
        ns in which all stages tell each other a number.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    weight: Sequence[float]
    chunks: int = 1
    split: bool = False
    update: Sequence[float] | None = None
    exchange: Sequence[float] | None = None
    buckets: int = 1
    norm: float = 0.0
    compute: Compute = field(default_factory=Steady)
    seed: int = 0

    def duration(self, step: int, stage: int, task: Task) -> int:
        """Return ns."""
        if task.kind is Kind.UPDATE:
            return round(self.update[stage] / self.buckets) if self.update else 0
        if task.kind is Kind.NORM:
            return round(self.norm)
        if task.kind in (Kind.RS, Kind.AG):
            return round(self.exchange[stage] / self.buckets) if self.exchange else 0
        usual = self.usual(stage, task.kind)
        return round(self.compute.vary(usual, seed=self.seed, step=step, stage=stage, task=task))

    def usual(self, stage: int, kind: Kind) -> float:
        """Return the usual time of a forward, backward or weight gradient of one chunk (ns)."""
        if kind is Kind.F:
            whole = self.forward[stage]
        elif kind is Kind.W:
            whole = self.weight[stage]
        else:
            whole = self.backward[stage] - (self.weight[stage] if self.split else 0.0)
        return whole / self.chunks


class Place(NamedTuple):
    """A task of a recorded run."""

    step: int
    stage: int
    task: Task


class Cut(NamedTuple):
    """How a model is cut into stages and chunks, and whether the backward is split."""

    stages: int
    chunks: int
    split: bool


@dataclass(frozen=True, slots=True)
class RecordedTimes:
    """The times that a run recorded, task by task, also for schedules that cut the model otherwise.

    Where the cut is another one, a stage takes its share of the recorded stages of the same micro-batch, as if a stage
    were even inside; its chunks share that evenly; a whole backward is split in halves. Micro-batches beyond the
    recorded ones repeat them.

    Parameters
    ----------
    times
        ns by place; with them whatever else kept the stage busy between tasks.
    microbatches
        How many a recorded step has.
    """

    times: Mapping[Place, int]
    microbatches: int
    recorded: Cut
    wanted: Cut

    def duration(self, step: int, stage: int, task: Task) -> int:
        """Return ns; 0 for a task that the run did not have."""
        if task.kind is Kind.NORM:
            return self.times.get(Place(step, 0, task), 0)
        if task.kind not in (Kind.F, Kind.B, Kind.W):
            return self._after_gradients(step, stage, task)
        microbatch = task.microbatch % self.microbatches
        if self.recorded == self.wanted:
            return self.times.get(Place(step, stage, Task(task.kind, microbatch, task.chunk)), 0)
        if task.kind is Kind.F:
            return round(self._whole(step, stage, Kind.F, microbatch) / self.wanted.chunks)
        backward = self._whole(step, stage, Kind.B, microbatch)
        weight = self._whole(step, stage, Kind.W, microbatch) if self.recorded.split else backward / 2
        backward -= 0 if self.recorded.split else weight
        if task.kind is Kind.W:
            return round(weight / self.wanted.chunks)
        return round((backward if self.wanted.split else backward + weight) / self.wanted.chunks)

    def _whole(self, step: int, stage: int, kind: Kind, microbatch: int) -> float:
        """Return the time of all chunks of a wanted stage."""
        return sum(
            share * self.times.get(Place(step, there, Task(kind, microbatch, chunk)), 0)
            for there, share in self._shares(stage)
            for chunk in range(self.recorded.chunks)
        )

    def _after_gradients(self, step: int, stage: int, task: Task) -> int:
        return round(sum(share * self.times.get(Place(step, there, task), 0) for there, share in self._shares(stage)))

    def _shares(self, stage: int) -> list[tuple[int, float]]:
        """Return the recorded stages that a wanted stage overlaps, with the part of each that it holds."""
        before, after = self.recorded.stages, self.wanted.stages
        if before == after:
            return [(stage, 1.0)]
        first, last = stage * before / after, (stage + 1) * before / after
        parts = ((there, min(last, there + 1) - max(first, there)) for there in range(before))
        return [(there, part) for there, part in parts if part > 0]


class Edge(NamedTuple):
    """A direction of a link between two stages."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class RecordedMessages:
    """How long the messages of a run took (ns).

    `times` by place of the task that a message fed; a message that the run did not have takes its edge's usual time, or
    where the edge is new, the usual time of all.
    """

    times: Mapping[Place, int]
    usual: Mapping[Edge, int]
    anywhere: int

    def arrival(self, step: int, source: int, target: int, task: Task, now: int) -> int:
        """Return when a message sent now arrives."""
        usual = self.usual.get(Edge(source, target), self.anywhere)
        return now + self.times.get(Place(step, target, task), usual)
