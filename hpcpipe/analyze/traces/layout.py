"""Where the virtual stages of imported traces lie: which rank is which stage, chunk and replica. It knows no times."""

from dataclasses import dataclass

from hpcpipe.analyze.traces.names import Role
from hpcpipe.analyze.traces.read import Trace
from hpcpipe.events import LogError
from hpcpipe.plan import Placement


@dataclass(frozen=True, slots=True)
class Layout:
    """`place[rank]` is (stage, replica), `rank_of` its reverse; `numbered` is False where names tell no stage."""

    placement: Placement
    replicas: int
    place: dict[int, tuple[int, int]]
    rank_of: dict[tuple[int, int], int]
    numbered: bool

    def virtual(self, rank: int, stage: int) -> int:
        """Return the virtual stage of a task that names `stage`, or none."""
        return stage if self.numbered else self.place[rank][0]


def layout_of(traces: list[Trace]) -> Layout:
    """Find the layout from the stages that the tasks name; without any, rank r is stage r.

    Raises
    ------
    LogError
        The stages are dealt out to the ranks neither in rounds nor in a V.
    """
    held = {trace.rank: sorted({span.means.stage for span in trace.of(Role.TASK)}) for trace in traces}
    if any(stages[:1] == [-1] for stages in held.values()):
        order = sorted(held)
        place = {rank: (stage, 0) for stage, rank in enumerate(order)}
        return Layout(Placement(len(order)), 1, place, {value: key for key, value in place.items()}, False)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(held):
        groups.setdefault(tuple(held[rank]), []).append(rank)
    stages = sorted(groups)
    chunks = len(stages[0])
    placements = [Placement(len(stages), chunks), Placement(len(stages), chunks, "v")]
    wanted = {stage: list(group) for stage, group in enumerate(stages)}
    for placement in placements:
        virtual = {
            stage: sorted(placement.virtual(stage, chunk) for chunk in range(chunks)) for stage in range(len(stages))
        }
        if virtual == wanted:
            place = {rank: (s, r) for s, group in enumerate(stages) for r, rank in enumerate(groups[group])}
            replicas = max(len(ranks) for ranks in groups.values())
            return Layout(placement, replicas, place, {value: key for key, value in place.items()}, True)
    found = "; ".join(f"{list(group)} on ranks {ranks}" for group, ranks in groups.items())
    raise LogError(f"the stages lie on the ranks neither in rounds nor in a V: {found}; are traces missing?")
