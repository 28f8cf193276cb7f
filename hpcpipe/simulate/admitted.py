"""A job's admission in every step: which micro-batch takes which place, from what can be predicted of its cost.

Predicted is what follows the micro-batch, known from its input; noise of single tasks is not, and stays with its place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpcpipe.plan import Kind, Schedule, Task, admission_order
from hpcpipe.simulate.admission import auto_admission
from hpcpipe.simulate.times import Times

AUTO = "auto"
Order = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdmittedTimes:
    """Times of tasks by place, where the micro-batch of a place is what a rule put there.

    Parameters
    ----------
    times
        By micro-batch of the global batch.
    order
        Step -> the micro-batch of every place; asked once a step.
    """

    times: Times
    order: Callable[[int], Order]
    _orders: dict[int, Order] = field(default_factory=dict)

    def duration(self, step: int, stage: int, task: Task) -> int:
        """Return ns."""
        if task.kind in (Kind.F, Kind.B, Kind.W):
            order = self._orders.get(step)
            if order is None:
                order = self._orders[step] = self.order(step)
            task = task._replace(microbatch=order[task.microbatch])
        return self.times.duration(step, stage, task)


def order_of_step(
    rule: str, schedule: Schedule, times: Times, *, step: int, stages: Sequence[int], latency_ns: int = 0
) -> Order:
    """Return the order of a step by a rule, from times that are predicted exactly.

    A micro-batch's cost is the time of its forward and backward on all stages; `auto` searches with the whole schedule.
    """
    kinds = (Kind.F, Kind.B, Kind.W) if schedule.split else (Kind.F, Kind.B)
    if rule == AUTO:
        found = auto_admission(
            schedule, duration=lambda stage, task: times.duration(step, stage, task), latency=latency_ns
        )
        return found.order
    costs = [
        sum(times.duration(step, stage, Task(kind, microbatch)) for stage in stages for kind in kinds)
        for microbatch in range(schedule.microbatches)
    ]
    return admission_order(rule, costs)
