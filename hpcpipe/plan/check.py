"""Prove an order before it runs: complete, without repeats, executable, and with known peaks of memory.

Any schedule that is written down as data passes through here, whoever made it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcpipe.plan.placement import Placement
from hpcpipe.plan.task import Kind, Task

Waiting = tuple[int, Task, tuple[int, Task]]
"""A stage, the task at which it stands, and the task with its stage that this needs."""


class OrdersWaitError(ValueError):
    """Orders that wait for each other; `circle` has each stage of the circle once."""

    def __init__(self, circle: Sequence[Waiting]) -> None:
        self.circle = tuple(circle)
        links = [f"stage {stage} at {task} (needs {_of(need)})" for stage, task, need in circle]
        super().__init__(f"the orders wait for each other: {', '.join(links)}")


class Peaks(NamedTuple):
    """The most that each stage holds at any time, in micro-batches of one chunk.

    `in_flight` counts forwards without their backward (n_F - n_B). `stash` counts forwards without their weight
    gradient (n_F - n_W), which hold memory too; the two are equal where the backward is not split.
    """

    in_flight: tuple[int, ...]
    stash: tuple[int, ...]


def check_order(orders: Sequence[Sequence[Task]], *, placement: Placement, microbatches: int, split: bool) -> Peaks:
    """Check the orders of all stages together and return each stage's peaks.

    With `split`, B is the gradient of the input only and every B has a W.

    Raises
    ------
    ValueError
        There is not one order a stage, tasks are missing, repeated or foreign on a stage, or the orders wait for each
        other in a circle (which is named).
    """
    if len(orders) != placement.stages:
        raise ValueError(f"{len(orders)} orders for {placement.stages} stages")
    kinds = (Kind.F, Kind.B, Kind.W) if split else (Kind.F, Kind.B)
    wanted = {Task(k, m, c) for k in kinds for m in range(microbatches) for c in range(placement.chunks)}
    for stage, order in enumerate(orders):
        if len(order) != len(set(order)):
            raise ValueError(f"stage {stage}: the order repeats {_first_repeat(order)}")
        if set(order) != wanted:
            missing, foreign = sorted(wanted - set(order)), sorted(set(order) - wanted)
            raise ValueError(f"stage {stage}: missing {_names(missing)}, unknown {_names(foreign)}")
    _check_executable(orders, placement)
    return Peaks(
        tuple(_peak(order, Kind.B) for order in orders),
        tuple(_peak(order, Kind.W if split else Kind.B) for order in orders),
    )


def needs(stage: int, task: Task, placement: Placement) -> Iterator[tuple[int, Task]]:
    """Yield the tasks, with their stages, whose results an F, B or W uses."""
    kind, microbatch, chunk = task
    virtual = placement.virtual(stage, chunk)
    if kind is Kind.F and virtual > 0:
        owner, there = placement.owner(virtual - 1)
        yield owner, Task(Kind.F, microbatch, there)
    elif kind is Kind.B:
        yield stage, Task(Kind.F, microbatch, chunk)
        if virtual < placement.virtual_stages - 1:
            owner, there = placement.owner(virtual + 1)
            yield owner, Task(Kind.B, microbatch, there)
    elif kind is Kind.W:
        yield stage, Task(Kind.B, microbatch, chunk)


def _check_executable(orders: Sequence[Sequence[Task]], placement: Placement) -> None:
    """Run all orders as far as they go. O(tasks): a stage is looked at again only when what it waits for is done."""
    position = [0] * len(orders)
    done: set[tuple[int, Task]] = set()
    waiting: dict[tuple[int, Task], list[int]] = {}
    awake = list(range(len(orders)))
    while awake:
        stage = awake.pop()
        while position[stage] < len(orders[stage]):
            task = orders[stage][position[stage]]
            missing = next((need for need in needs(stage, task, placement) if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            done.add((stage, task))
            position[stage] += 1
            awake += waiting.pop((stage, task), [])
    waits_for = {stage: need for need, stages in waiting.items() for stage in stages}
    if waits_for:
        circle = _circle({stage: owner for stage, (owner, _) in waits_for.items()})
        raise OrdersWaitError([(stage, orders[stage][position[stage]], waits_for[stage]) for stage in circle])


def _circle(after: dict[int, int]) -> list[int]:
    """Follow the waits from the first stuck stage until they close, and begin the circle at its smallest stage."""
    path: list[int] = []
    stage = min(after)
    while stage not in path:
        path.append(stage)
        stage = after[stage]
    circle = path[path.index(stage) :]
    start = circle.index(min(circle))
    return circle[start:] + circle[:start]


def _of(need: tuple[int, Task]) -> str:
    stage, task = need
    return f"{task} of stage {stage}"


def _peak(order: Sequence[Task], release: Kind) -> int:
    held = peak = 0
    for task in order:
        held += (task.kind is Kind.F) - (task.kind is release)
        peak = max(peak, held)
    return peak


def _first_repeat(order: Sequence[Task]) -> Task:
    seen: set[Task] = set()
    return next(task for task in order if task in seen or seen.add(task))  # type: ignore[func-returns-value]


def _names(tasks: Sequence[Task]) -> str:
    return ", ".join(map(str, tasks[:5])) + (" …" if len(tasks) > 5 else "") if tasks else "none"
