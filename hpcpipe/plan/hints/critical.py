"""The hint `critical`: tasks ranked by how long a way they still have to the end of the step, by measured times.

It knows a profile and makes orders from it, off the hot path; whether they are followed or only rank what is ready is
the policy's affair.
"""

from functools import lru_cache

from hpcpipe.plan.flight import chunk_profile
from hpcpipe.plan.hint import Order
from hpcpipe.plan.hints.list_schedule import Lane, list_schedule
from hpcpipe.plan.hints.zbv import zbv
from hpcpipe.plan.hints.zero_bubble import zb_h1
from hpcpipe.plan.paths import remaining_paths, step_time
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.profile import Profile
from hpcpipe.plan.task import Kind, Task

F, B = Kind.F, Kind.B
LANES: dict[int, tuple[tuple[Lane, ...], ...]] = {
    1: (((B, 0), (F, 0)),),
    2: (((B, 0), (F, 1), (F, 0), (B, 1)), ((F, 1), (F, 0), (B, 1), (B, 0))),
}
PATIENCE = (0.0, 0.25, 0.5)

Orders = tuple[tuple[Task, ...], ...]


def critical(
    *, stage: int, stages: int, microbatches: int, chunks: int = 1, profile: Profile | None = None
) -> tuple[Task, ...]:
    """Return the stage's order: of several at 1F1B's memory, the one whose step is shortest under the profile.

    The candidates are the order of the literature (ZB-H1 with one chunk, ZBV with two) and what list scheduling finds
    with more and less patience; they replace the former only where they gain what a profile's errors do not eat up.
    Without a profile all tasks take the same time and messages none, and the order of the literature stands.
    """
    return critical_hint(stage=stage, stages=stages, microbatches=microbatches, chunks=chunks, profile=profile).tasks


def critical_hint(
    *, stage: int, stages: int, microbatches: int, chunks: int = 1, profile: Profile | None = None
) -> Order:
    """Return the order of `critical` with the ranks that go with it under readiness.

    Forwards and backwards are ranked by their longest remaining path. Nothing but the end of the step waits for a
    weight gradient, and the cap on the stash lets none be put off for good; with two chunks it is ranked as if its path
    were shorter by the stage's work on one micro-batch, so that it gives way to what others wait for. With one chunk
    ZB-H1 has put it off already.

    One stage alone has nothing to choose: its order is that of either hint of the literature with any number of chunks,
    one micro-batch after the other, each weight gradient as soon as it can be, and that is also the ranking.

    Raises
    ------
    ValueError
        Neither one chunk nor two on several stages, or a profile of another pipeline.
    """
    placement = Placement(stages, chunks, "v")
    if stages == 1:
        return Order("critical", [task for m in range(microbatches) for task in _alone(m, chunks)])
    if chunks not in LANES:
        raise ValueError(f'hint "critical" has 1 or 2 chunks a stage, not {chunks}')
    if profile is None:
        profile = Profile.uniform(stages=stages, chunks=chunks)
    if (profile.stages, profile.chunks) != (stages, chunks):
        raise ValueError(
            f"the profile is of {profile.stages} stages of {profile.chunks} chunks, "
            f"the pipeline has {stages} of {chunks}"
        )
    if profile.factors is not None and len(profile.factors) != microbatches:
        raise ValueError(f"the profile knows {len(profile.factors)} micro-batches, the step has {microbatches}")
    return _hints(profile, placement, microbatches)[stage]


def _alone(microbatch: int, chunks: int) -> list[Task]:
    """Return the tasks of a micro-batch on the only stage."""
    there = [Task(F, microbatch, chunk) for chunk in range(chunks)]
    return there + [Task(kind, microbatch, chunk) for chunk in reversed(range(chunks)) for kind in (B, Kind.W)]


@lru_cache(maxsize=4)
def _hints(profile: Profile, placement: Placement, microbatches: int) -> tuple[Order, ...]:
    """Make the hints of all stages; kept, because every stage of a process asks for the same."""
    known, *found = _candidates(profile, placement, microbatches)
    time, best = min(((step_time(orders, placement, profile), number) for number, orders in enumerate(found)))
    orders = found[best] if time < (1.0 - _worth_it(profile)) * step_time(known, placement, profile) else known
    paths = remaining_paths(orders, placement, profile)
    hints = []
    for stage, order in enumerate(orders):
        late = profile.of_microbatch(stage) if placement.chunks > 1 else 0
        ranks = sorted(order, key=lambda t: (t.kind is Kind.W) * late - paths[stage][t])
        hints.append(Order("critical", order, ranks=ranks))
    return tuple(hints)


def _worth_it(profile: Profile) -> float:
    """Return by which part a step must be shorter for its order to be preferred to that of the literature.

    Where times and delays vary, what one step measured fits the next one less: a tenth of the deviations, that of
    delays in forwards.
    """
    return 0.01 + 0.1 * (profile.spread + profile.delay_deviation / profile.forward)


def _candidates(profile: Profile, placement: Placement, microbatches: int) -> list[Orders]:
    """Return orders that stash no more than 1F1B does on its fullest stage; the one of the literature first."""
    stages, chunks = placement.stages, placement.chunks
    known = zbv if chunks > 1 else zb_h1
    rooms = (
        [[(chunk_profile(stage=s, stages=stages)[0], 2 * stages) for s in range(stages)]]
        if chunks > 1
        else [[(stages,)] * stages, [(stages - s,) for s in range(stages)]]
    )
    return [
        tuple(known(stage=s, stages=stages, microbatches=microbatches) for s in range(stages)),
        *(
            list_schedule(profile, placement, microbatches=microbatches, room=room, lanes=lanes, patience=patience)
            for room in rooms
            for lanes in LANES[chunks]
            for patience in PATIENCE
        ),
    ]
