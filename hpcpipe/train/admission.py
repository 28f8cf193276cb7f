"""Which micro-batch of the step takes each place in the pipeline, by costs that are known before it from sizes alone.

Every rank that reads data computes the same order, so nothing is sent; the others only ever see places.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcpipe.job import Job
from hpcpipe.plan import Kind, Schedule, Task, admission_order
from hpcpipe.plan.by_step import ByStep
from hpcpipe.simulate.admission import auto_admission
from hpcpipe.simulate.admitted import AUTO
from hpcpipe.simulate.costs import FLOPS_OF_BACKWARD
from hpcpipe.simulate.times import Times
from hpcpipe.train.model import Model

if TYPE_CHECKING:
    from hpcpipe.runtime.stage import Batches

Order = tuple[int, ...]
_UNIT = 1e3


@dataclass(frozen=True, slots=True)
class PredictedTimes:
    """How long the tasks of a step's micro-batches take, in units of 1000 multiply-adds, the same on every machine.

    `costs` are those of every layer's forward by micro-batch, `pieces` the layers of every stage by chunk. A backward
    takes twice the forward, half of it for the weights where it is `split`.
    """

    costs: Sequence[Sequence[float]]
    pieces: Sequence[Sequence[range]]
    split: bool

    def duration(self, stage: int, task: Task) -> int:
        """Return the predicted time of a task of a micro-batch of the batch as given."""
        piece = self.pieces[stage][task.chunk]
        forward = sum(self.costs[task.microbatch][piece.start : piece.stop]) / _UNIT
        if task.kind is Kind.F:
            return round(forward)
        halved = self.split or task.kind is Kind.W
        return round(forward * FLOPS_OF_BACKWARD / (2.0 if halved else 1.0))


def admission_of(
    job: Job, model: Model, *, schedule: Schedule, pieces: Sequence[Sequence[range]], replica: int
) -> Callable[[int], Order] | None:
    """Return step -> the micro-batch of every place; None where all stay where they are."""
    rule, costs = job.schedule.admission, model.costs
    if rule == "as-given" or costs is None:
        return None

    def order(step: int) -> Order:
        known = costs(step, replica)
        if rule != AUTO:
            return admission_order(rule, [sum(of_layers) for of_layers in known])
        return auto_admission(schedule, duration=PredictedTimes(known, pieces, schedule.split).duration).order

    return order


@dataclass(frozen=True, slots=True)
class MicrobatchTimes:
    """Times of a machine on which tasks take as long as their micro-batch's cost says (ns).

    Parameters
    ----------
    usual
        Where the times of other tasks come from.
    predicted
        Step -> the times of its tasks by micro-batch as given.
    order
        Step -> the micro-batch of every place, None where all stay.
    ns_per_unit
        Of the unit of `predicted`.
    """

    usual: Times
    predicted: Callable[[int], PredictedTimes]
    order: Callable[[int], Order] | None
    ns_per_unit: float
    _steps: dict[int, tuple[PredictedTimes, Order | None]] = field(default_factory=dict)

    def duration(self, step: int, stage: int, task: Task) -> int:
        """Return ns."""
        if task.kind not in (Kind.F, Kind.B, Kind.W):
            return self.usual.duration(step, stage, task)
        if step not in self._steps:
            self._steps[step] = self.predicted(step), None if self.order is None else self.order(step)
        predicted, order = self._steps[step]
        if order is not None:
            task = task._replace(microbatch=order[task.microbatch])
        return round(predicted.duration(stage, task) * self.ns_per_unit)


def varying_times(
    usual: Times,
    job: Job,
    model: Model,
    *,
    schedule: Schedule,
    pieces: Sequence[Sequence[range]],
    flops_per_s: float,
) -> Times:
    """Return the times of a job's first replica where micro-batches differ, else `usual`."""
    costs = model.costs
    if costs is None:
        return usual

    def predicted(step: int) -> PredictedTimes:
        return PredictedTimes(costs(step, 0), pieces, schedule.split)

    order = admission_of(job, model, schedule=schedule, pieces=pieces, replica=0)
    return MicrobatchTimes(usual, predicted, order, 2.0 * _UNIT * 1e9 / flops_per_s)


class AdmittedBatches:
    """Micro-batches by place."""

    def __init__(self, batches: "Batches", order: Callable[[int], Order]) -> None:
        self._batches = batches
        self._order_of = ByStep(order)
        self._order: Order = ()

    def change(self, step: int, order: Callable[[int], Order]) -> None:
        """Have another order from a step on."""
        self._order_of.change(step, order)

    def load(self, step: int) -> None:
        """Read the step's micro-batches and decide who comes where."""
        self._order = self._order_of.at(step)(step)
        self._batches.load(step)

    def inputs(self, microbatch: int) -> Any:
        """Return the input of the micro-batch at a place."""
        return self._batches.inputs(self._order[microbatch])

    def targets(self, microbatch: int) -> Any:
        """Return the targets of the micro-batch at a place."""
        return self._batches.targets(self._order[microbatch])
