"""Prove an order before it runs: complete, without repeats, executable, and with a known peak in flight.

Any schedule that is written down as data passes through here, whoever made it.
"""

from collections.abc import Sequence

from hpcpipe.plan.task import Kind, Task


def check_order(orders: Sequence[Sequence[Task]], *, microbatches: int) -> tuple[int, ...]:
    """Check the orders of all stages together and return each stage's peak of micro-batches in flight.

    Raises
    ------
    ValueError
        Tasks are missing, repeated or foreign on a stage, or the orders wait for each other in a circle.
    """
    wanted = {Task(kind, m) for kind in (Kind.F, Kind.B) for m in range(microbatches)}
    for stage, order in enumerate(orders):
        if len(order) != len(set(order)):
            raise ValueError(f"stage {stage}: the order repeats {_first_repeat(order)}")
        if set(order) != wanted:
            missing, foreign = sorted(wanted - set(order)), sorted(set(order) - wanted)
            raise ValueError(f"stage {stage}: missing {_names(missing)}, unknown {_names(foreign)}")
    _check_executable(orders)
    return tuple(_peak(order) for order in orders)


def _check_executable(orders: Sequence[Sequence[Task]]) -> None:
    """Run all orders as far as they go; stages whose next task waits for ever form a circle."""
    last = len(orders) - 1
    position = [0] * len(orders)
    done: set[tuple[int, Task]] = set()

    def runnable(stage: int, task: Task) -> bool:
        if task.kind is Kind.F:
            return stage == 0 or (stage - 1, task) in done
        return (stage, Task(Kind.F, task.microbatch)) in done and (stage == last or (stage + 1, task) in done)

    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order) and runnable(stage, order[position[stage]]):
                done.add((stage, order[position[stage]]))
                position[stage] += 1
                moved = True
    stuck = [f"stage {s} at {o[position[s]]}" for s, o in enumerate(orders) if position[s] < len(o)]
    if stuck:
        raise ValueError(f"the orders wait for each other: {', '.join(stuck)}")


def _peak(order: Sequence[Task]) -> int:
    in_flight = peak = 0
    for task in order:
        in_flight += 1 if task.kind is Kind.F else -1
        peak = max(peak, in_flight)
    return peak


def _first_repeat(order: Sequence[Task]) -> Task:
    seen: set[Task] = set()
    return next(task for task in order if task in seen or seen.add(task))  # type: ignore[func-returns-value]


def _names(tasks: Sequence[Task]) -> str:
    return ", ".join(map(str, tasks[:5])) + (" …" if len(tasks) > 5 else "") if tasks else "none"
