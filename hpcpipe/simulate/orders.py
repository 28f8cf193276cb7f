"""The step times of fixed orders for many admission orders at once: longest paths over arrays, no events.

It knows links that only delay (one latency for all); whatever varies while the step runs needs `simulate_step`.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from hpcpipe.plan import Kind, Placement, Task
from hpcpipe.plan.check import needs

Integers = NDArray[np.int64]


class OrderedStep:
    """One step whose stages each keep to an order of tasks.

    Which task waits for which is the same whatever the micro-batches cost, so it is worked out once: tasks lie in
    levels; each waits only for those before it and is one array operation over all admission orders.

    Parameters
    ----------
    orders
        Of each stage; `microbatch` of a task is a place in the admission order.
    latency
        Of each message between stages, in the unit of the durations.

    Raises
    ------
    ValueError
        The orders wait for each other in a circle or for a task that is in none of them.
    """

    def __init__(self, orders: Sequence[Sequence[Task]], *, placement: Placement, latency: int = 0) -> None:
        tasks = [(stage, task) for stage, order in enumerate(orders) for task in order]
        number = {task: index for index, task in enumerate(tasks)}
        nothing = len(tasks)
        before = [nothing] * len(tasks)  # on the same stage
        sender = [nothing] * len(tasks)  # on another stage
        for index, (stage, task) in enumerate(tasks):
            if index and tasks[index - 1][0] == stage:
                before[index] = index - 1
            for need in needs(stage, task, placement):
                if need not in number:
                    raise ValueError(
                        f"{task} of stage {stage} needs {need[1]} of stage {need[0]}, which is in no order"
                    )
                if need[0] != stage:
                    sender[index] = number[need]
        level = _levels(before, sender)
        by_level = sorted(range(len(tasks)), key=level.__getitem__)
        place = {index: at for at, index in enumerate(by_level)} | {nothing: nothing}
        self.latency = latency
        self._before = np.array([place[before[index]] for index in by_level])
        self._sender = np.array([place[sender[index]] for index in by_level])
        starts = [at for at in range(nothing) if at == 0 or level[by_level[at]] > level[by_level[at - 1]]]
        self._levels = list(zip(starts, [*starts[1:], nothing], strict=True))
        kinds = {(stage, task._replace(microbatch=0)): None for stage, task in tasks}
        row = {kind: index for index, kind in enumerate(kinds)}
        self._kinds = tuple(kinds)
        ordered = [tasks[index] for index in by_level]
        self._row = np.array([row[stage, task._replace(microbatch=0)] for stage, task in ordered])
        self._microbatch = np.array([task.microbatch for _, task in ordered])
        self._held = np.array(list(dict.fromkeys(held for order in orders for held in _held(order))), dtype=np.float64)

    def durations(self, duration: Callable[[int, Task], int], microbatches: int) -> Integers:
        """Return the durations as `times` takes them; `duration` gets the stage and a task of the global batch."""
        return np.array(
            [
                [duration(stage, kind._replace(microbatch=index)) for index in range(microbatches)]
                for stage, kind in self._kinds
            ],
            dtype=np.int64,
        )

    def times(self, durations: Integers, admissions: Sequence[Sequence[int]]) -> Integers:
        """Return the step time under each admission order, exact, in the unit of the durations."""
        orders = np.asarray(admissions, dtype=np.int64)
        length = durations[self._row[:, None], orders.T[self._microbatch]]
        # One more row stands for "waits for nothing": it ends so early that not even the latency makes it late.
        ends = np.zeros((len(length) + 1, len(orders)), dtype=np.int64)
        ends[-1] = -self.latency
        for begin, end in self._levels:
            after = ends[self._before[begin:end]]
            arrived = ends[self._sender[begin:end]]
            arrived += self.latency
            np.maximum(after, arrived, out=after)
            np.add(after, length[begin:end], out=ends[begin:end])
        return ends[:-1].max(axis=0, initial=0)

    def peak_stash(self, weights: Sequence[int], admissions: Sequence[Sequence[int]]) -> Integers:
        """Return the most that any stage stashes under each admission order, in the unit of the weights.

        `weights` are the bytes of each micro-batch's activations in one chunk, or anything in proportion, below 2^40.
        """
        carried = np.asarray(weights, dtype=np.float64)[np.asarray(admissions, dtype=np.int64)]
        return (self._held @ carried.T).max(axis=0).astype(np.int64)  # exact: sums of integers below 2^53


def _held(order: Sequence[Task]) -> Iterator[tuple[int, ...]]:
    """Yield how many chunks of each place a stage stashes whenever a backward or weight gradient ends a rise."""
    last = Kind.W if any(task.kind is Kind.W for task in order) else Kind.B
    held = [0] * (1 + max(task.microbatch for task in order))
    rising = False
    for task in order:
        if task.kind is last:
            if rising:
                yield tuple(held)
            rising = False
            held[task.microbatch] -= 1
        elif task.kind is Kind.F:
            rising = True
            held[task.microbatch] += 1


def _levels(before: Sequence[int], sender: Sequence[int]) -> list[int]:
    """Return for each task how many tasks wait for each other, at the longest, until it can run."""
    nothing = len(before)
    followers: list[list[int]] = [[] for _ in range(nothing)]
    missing = [0] * nothing
    for index, sources in enumerate(zip(before, sender, strict=True)):
        for source in sources:
            if source < nothing:
                followers[source].append(index)
                missing[index] += 1
    level = [0] * nothing
    free = [index for index in range(nothing) if not missing[index]]
    for index in free:
        for follower in followers[index]:
            level[follower] = max(level[follower], level[index] + 1)
            missing[follower] -= 1
            if not missing[follower]:
                free.append(follower)
    if len(free) < nothing:
        raise ValueError("the orders wait for each other in a circle; check_order names it")
    return level
