"""When the tasks of given orders run under a profile, and how long a way each still has to the end of the step.

Both are longest paths over the same edges (inputs, messages, the order on each stage), in O(tasks).
"""

from collections.abc import Sequence
from itertools import pairwise

from hpcpipe.plan.check import needs
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.profile import Profile
from hpcpipe.plan.task import Task


def start_times(orders: Sequence[Sequence[Task]], placement: Placement, profile: Profile) -> list[dict[Task, int]]:
    """Return when each task of a stage starts (ns) if every stage runs its order without any delay of its own.

    Raises
    ------
    ValueError
        The orders wait for each other in a circle.
    """
    starts: list[dict[Task, int]] = [{} for _ in orders]
    position, free = [0] * len(orders), [0] * len(orders)
    waiting: dict[tuple[int, Task], list[int]] = {}
    awake = list(range(len(orders)))
    while awake:
        stage = awake.pop()
        while position[stage] < len(orders[stage]):
            task = orders[stage][position[stage]]
            begin = free[stage]
            for owner, need in needs(stage, task, placement):
                if need not in starts[owner]:
                    waiting.setdefault((owner, need), []).append(stage)
                    break
                end = starts[owner][need] + profile.duration(owner, need)
                begin = max(begin, end + (profile.delay if owner != stage else 0))
            else:
                starts[stage][task] = begin
                free[stage] = begin + profile.duration(stage, task)
                position[stage] += 1
                awake += waiting.pop((stage, task), [])
                continue
            break
    if waiting:
        raise ValueError("the orders wait for each other in a circle; check_order names it")
    return starts


def step_time(orders: Sequence[Sequence[Task]], placement: Placement, profile: Profile) -> int:
    """Return the ns until every stage has run its order."""
    starts = start_times(orders, placement, profile)
    return max(begin + profile.duration(stage, t) for stage, times in enumerate(starts) for t, begin in times.items())


def remaining_paths(orders: Sequence[Sequence[Task]], placement: Placement, profile: Profile) -> list[dict[Task, int]]:
    """Return for each task of a stage the longest path (ns) from its start to the end of the step.

    The latest start of a task that does not lengthen the step is the step's time minus this.
    """
    starts = start_times(orders, placement, profile)
    after = [dict(pairwise(order)) for order in orders]
    latest_first = sorted(
        ((begin, stage, task) for stage, times in enumerate(starts) for task, begin in times.items()), reverse=True
    )  # every task takes time, so what follows it starts later
    behind: list[dict[Task, int]] = [dict.fromkeys(order, 0) for order in orders]
    paths: list[dict[Task, int]] = [{} for _ in orders]
    for _, stage, task in latest_first:
        follower = after[stage].get(task)
        most = max(behind[stage][task], paths[stage][follower] if follower is not None else 0)
        paths[stage][task] = path = most + profile.duration(stage, task)
        for owner, need in needs(stage, task, placement):
            way = path + (profile.delay if owner != stage else 0)
            behind[owner][need] = max(behind[owner][need], way)
    return paths
