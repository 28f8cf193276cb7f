"""Find an order by running a step in virtual time: each free stage takes the best of what is ready or about to be.

List scheduling (Graham, 1969) over a profile, with room for so many activations and a little patience; the rule of
zbv.py freed from its unit times. It must not know which order is good for what.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from hpcpipe.plan.placement import Placement
from hpcpipe.plan.profile import KINDS, Profile
from hpcpipe.plan.task import Kind, Task

Lane = tuple[Kind, int]


def list_schedule(
    profile: Profile,
    placement: Placement,
    *,
    microbatches: int,
    room: Sequence[tuple[int, ...]],
    lanes: Sequence[Lane],
    patience: float = 0.0,
) -> tuple[tuple[Task, ...], ...]:
    """Return an order of F, B and W for every stage; micro-batches of a kind and chunk go in their own order.

    It always ends. Chunks 0 to c of a stage together have room for `room[stage][c]` activations, more for each further
    chunk. Let nothing run. Gradients are never refused, so all virtual stages have finished the same backwards; take
    the last one with more forwards than its successor. The successor has a forward ready and nothing in flight, nor
    have those after it, so its chunk has room: those before it may not use the last place. Nobody waits for ever,
    because patience is only for what has already been given a time.

    Parameters
    ----------
    room
        By stage and chunk, rising with the chunk, each at least 1.
    lanes
        Forwards and backwards, best first. Weight gradients fill in, last chunk first; they go before all else on a
        stage that has room for at most one more.
    patience
        A stage waits for a better task up to this part of that task's own duration.
    """
    stages, chunks, last = placement.stages, placement.chunks, placement.virtual_stages - 1
    weights = tuple((Kind.W, chunk) for chunk in reversed(range(chunks)))
    orders: list[list[Task]] = [[] for _ in range(stages)]
    arrivals: list[dict[Lane, list[int]]] = [{lane: [] for lane in (*lanes, *weights)} for _ in range(stages)]
    taken = [dict.fromkeys((*lanes, *weights), 0) for _ in range(stages)]
    held = [[0] * chunks for _ in range(stages)]
    free = [0] * stages
    first, chunk = placement.owner(0)
    arrivals[first][Kind.F, chunk] = [0] * microbatches
    events = [(0, stage) for stage in range(stages)]

    def fits(stage: int, chunk: int) -> bool:
        return all(sum(held[stage][: c + 1]) < room[stage][c] for c in range(chunk, chunks))

    def choose(stage: int, now: int) -> tuple[Lane, int] | int | None:
        """Return the lane to serve and when, or when to look again; None if only a message can help."""
        nearly_full = sum(held[stage]) >= room[stage][-1] - 1
        later: int | None = None
        for lane in (*weights, *lanes) if nearly_full else (*lanes, *weights):
            (kind, chunk), number = lane, taken[stage][lane]
            if number == len(arrivals[stage][lane]) or (kind is Kind.F and not fits(stage, chunk)):
                continue
            arrival = arrivals[stage][lane][number]
            waits = 0.0 if kind is Kind.W else patience * profile.duration(stage, Task(kind, number, chunk))
            if arrival <= now + waits:
                return lane, max(now, arrival)
            later = arrival if later is None else min(later, arrival)
        return later

    while events:
        now, stage = heappop(events)
        if now < free[stage]:
            continue
        choice = choose(stage, now)
        if not isinstance(choice, tuple):
            if choice is not None:
                heappush(events, (choice, stage))
            continue
        (kind, chunk), begin = choice
        task = Task(kind, taken[stage][kind, chunk], chunk)
        taken[stage][kind, chunk] += 1
        orders[stage].append(task)
        held[stage][chunk] += (kind is Kind.F) - (kind is Kind.W)
        free[stage] = end = begin + profile.duration(stage, task)
        heappush(events, (end, stage))
        virtual = placement.virtual(stage, chunk)
        if kind is Kind.B:
            arrivals[stage][Kind.W, chunk].append(end)
        if kind is Kind.F and virtual == last:
            arrivals[stage][Kind.B, chunk].append(end)
        elif kind is Kind.F or (kind is Kind.B and virtual > 0):
            there, its_chunk = placement.owner(virtual + (1 if kind is Kind.F else -1))
            arrivals[there][kind, its_chunk].append(end + (profile.delay if there != stage else 0))
            heappush(events, (max(now, free[there]), there))
    assert all(len(order) == len(KINDS) * microbatches * chunks for order in orders), "list scheduling is stuck"
    return tuple(map(tuple, orders))
