"""When the tasks of fixed orders end: the longest path through orders and dependencies, with whole numbers for times.

Independent of `StagePlan` and of the policies, so that closed forms check the orders and nothing else.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hpcpipe.plan import Kind, Placement, Task


class Clocked(NamedTuple):
    """`spans` is the time from the first start to the last end on each stage."""

    makespan: int
    spans: tuple[int, ...]
    ends: dict[tuple[int, Task], int]


def clock(
    orders: Sequence[Sequence[Task]], placement: Placement, *, times: tuple[int, ...], latency: int = 0
) -> Clocked:
    """Run the orders. `times` are those of F, B and W; a message between different stages takes `latency`."""
    last = placement.virtual_stages - 1
    ends: dict[tuple[int, Task], int] = {}
    free, begin, position = [0] * len(orders), [0] * len(orders), [0] * len(orders)

    def inputs(stage: int, task: Task) -> list[tuple[int, Task]]:
        virtual = placement.virtual(stage, task.chunk)
        if task.kind is Kind.W:
            return [(stage, task._replace(kind=Kind.B))]
        found = [(stage, task._replace(kind=Kind.F))] if task.kind is Kind.B else []
        neighbour = virtual - 1 if task.kind is Kind.F else virtual + 1
        if 0 <= neighbour <= last:
            owner, chunk = placement.owner(neighbour)
            found.append((owner, task._replace(chunk=chunk)))
        return found

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                task = order[position[stage]]
                sources = inputs(stage, task)
                if any(source not in ends for source in sources):
                    break
                arrived = [ends[source] + (latency if source[0] != stage else 0) for source in sources]
                start = max([free[stage], *arrived])
                if position[stage] == 0:
                    begin[stage] = start
                free[stage] = ends[stage, task] = start + times[task.kind]
                position[stage] += 1
                moved = True
    assert all(position[s] == len(order) for s, order in enumerate(orders)), "the orders wait for each other"
    return Clocked(max(free), tuple(f - b for f, b in zip(free, begin, strict=True)), ends)
