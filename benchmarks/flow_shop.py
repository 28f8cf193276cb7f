"""Orders of jobs for the permutation flow shop: all jobs visit the machines one after the other, in one order.

The forwards of a step are one, with stages as machines. Pure arithmetic that knows nothing of backwards or memory.
"""

from collections.abc import Sequence


def makespan(costs: Sequence[Sequence[float]], order: Sequence[int]) -> float:
    """Return when the last job leaves the last machine; `costs[job][machine]`."""
    free = [0.0] * len(costs[0]) if costs else [0.0]
    for job in order:
        done = 0.0
        for machine, cost in enumerate(costs[job]):
            done = free[machine] = max(done, free[machine]) + cost
    return free[-1]


def johnson_order(first: Sequence[float], second: Sequence[float]) -> tuple[int, ...]:
    """Return the order of least makespan for two machines (S. M. Johnson, 1954, rule for two stages).

    Jobs that are shorter on the first machine go first, shortest first; the others follow, longest on the second
    machine first. Ties by index.
    """
    jobs = range(len(first))
    early = sorted((job for job in jobs if first[job] < second[job]), key=lambda job: (first[job], job))
    late = sorted((job for job in jobs if first[job] >= second[job]), key=lambda job: (-second[job], job))
    return (*early, *late)


def neh_order(costs: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return a good order for any number of machines (Nawaz, Enscore and Ham, 1983); `costs[job][machine]`.

    From the longest job on, each is inserted where the makespan of those so far is least, the earliest such place.
    O(jobs² machines) by Taillard's heads and tails (1990).
    """
    order: list[int] = []
    for job in sorted(range(len(costs)), key=lambda job: (-sum(costs[job]), job)):
        order.insert(_best_place(costs, order, job), job)
    return tuple(order)


def _best_place(costs: Sequence[Sequence[float]], order: Sequence[int], job: int) -> int:
    machines = range(len(costs[job]))
    heads = [[0.0 for _ in machines]]
    for earlier in order:
        heads.append(_after(heads[-1], costs[earlier]))
    tails = [[0.0 for _ in machines]]
    for later in reversed(order):
        tails.append(_after(tails[-1][::-1], costs[later][::-1])[::-1])
    tails.reverse()
    spans = [
        max(end + tail for end, tail in zip(_after(head, costs[job]), tails[place], strict=True))
        for place, head in enumerate(heads)
    ]
    return spans.index(min(spans))


def _after(free: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Return when each machine is free once a job has passed that found it free at `free`."""
    ends: list[float] = []
    done = 0.0
    for at, cost in zip(free, costs, strict=True):
        done = max(done, at) + cost
        ends.append(done)
    return ends
