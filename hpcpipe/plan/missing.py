"""Which inputs from other stages a stage still lacks in the midst of a step, and which task there makes each.

For looking at a step from outside; nothing here decides.
"""

from collections.abc import Collection
from typing import NamedTuple

from hpcpipe.plan.check import needs
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.task import Kind, Task


class Missing(NamedTuple):
    """A task that waits for another stage, that stage, and the task that makes the input there."""

    task: Task
    stage: int
    made_by: Task


def missing_inputs(
    placement: Placement, stage: int, microbatches: int, *, done: Collection[Task], arrived: Collection[Task]
) -> list[Missing]:
    """Return what keeps a stage waiting for others: forwards first, each chunk's in the order of the micro-batches.

    `done` are the tasks that are finished or run, `arrived` those whose input has come from another stage. A backward
    whose own forward is not done waits for that, not for another stage, and is left out.
    """
    found = []
    for kind in (Kind.F, Kind.B):
        for chunk in range(placement.chunks):
            for task in (Task(kind, microbatch, chunk) for microbatch in range(microbatches)):
                if task in done or task in arrived:
                    continue
                wanted = list(needs(stage, task, placement))
                if any(owner == stage and need not in done for owner, need in wanted):
                    continue
                found += [Missing(task, owner, need) for owner, need in wanted if owner != stage]
    return found
