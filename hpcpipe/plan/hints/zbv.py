"""ZB-V: two chunks in a V and the backward split; no bubble beyond the fill, at 1F1B's memory on every stage.

The aim is the one of arXiv 2401.10241, section 6. The order is not written down but found: all stages run in step with
tasks of one unit of time each, and every free stage takes the best of what is ready and fits into memory.
"""

from functools import lru_cache

from hpcpipe.plan.placement import Placement
from hpcpipe.plan.task import Kind, Task

PRIORITY = ((Kind.B, 0), (Kind.F, 1), (Kind.F, 0), (Kind.B, 1))
WEIGHTS = ((Kind.W, 1), (Kind.W, 0))


def zbv(*, stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """Return the stage's order.

    With F = B = W = t a chunk and M >= 2S - 1, a step takes 6Mt + (S - 1)t, and every stage stashes at most 2S
    chunks, the memory of S whole micro-batches.
    """
    return _run_in_step(stages, microbatches)[stage]


@lru_cache(maxsize=8)
def _run_in_step(stages: int, microbatches: int) -> tuple[tuple[Task, ...], ...]:
    """Find the orders of all stages. O(S M), so it is kept: every stage of a process asks for the same.

    It always ends. A stage that is nearly full runs a pending W before all else, and a forward of chunk 1 needs no more
    room than the last place, so the oldest micro-batch can always go on.
    """
    placement = Placement(stages, 2, "v")
    room = 2 * stages
    orders: list[list[Task]] = [[] for _ in range(stages)]
    counts = [dict.fromkeys((*PRIORITY, *WEIGHTS), 0) for _ in range(stages)]
    stash = [0] * stages
    # The stages by virtual stage; within one, micro-batches go in order, so counts say what is done.
    owners = [placement.owner(virtual) for virtual in range(placement.virtual_stages)]

    def ready(stage: int, kind: Kind, chunk: int) -> bool:
        mine = counts[stage]
        microbatch = mine[kind, chunk]
        if microbatch == microbatches:
            return False
        if kind is Kind.W:
            return mine[Kind.B, chunk] > microbatch
        virtual = placement.virtual(stage, chunk)
        if kind is Kind.F:
            before = virtual - 1
            return stash[stage] < room and (before < 0 or counts_of(before, Kind.F) > microbatch)
        after = virtual + 1
        return mine[Kind.F, chunk] > microbatch and (after == len(owners) or counts_of(after, Kind.B) > microbatch)

    def counts_of(virtual: int, kind: Kind) -> int:
        owner, chunk = owners[virtual]
        return counts[owner][kind, chunk]

    while any(len(order) < 6 * microbatches for order in orders):
        chosen = []
        for stage in range(stages):
            nearly_full = stash[stage] >= room - 1
            lanes = (*WEIGHTS, *PRIORITY) if nearly_full else (*PRIORITY, *WEIGHTS)
            lane = next((lane for lane in lanes if ready(stage, *lane)), None)
            if lane is not None:
                chosen.append((stage, lane))
        assert chosen, f"zbv is stuck with {stages} stages and {microbatches} micro-batches"
        for stage, lane in chosen:  # only now: within one unit of time nobody sees what others just finished
            kind, chunk = lane
            orders[stage].append(Task(kind, counts[stage][lane], chunk))
            counts[stage][lane] += 1
            stash[stage] += (kind is Kind.F) - (kind is Kind.W)
    return tuple(map(tuple, orders))
