"""The chain of tasks and gaps over all ranks that set the length of the windows, found by walking back from their end.

At each task: was it held by the task before it on its rank, or by what came last from another? It judges nothing.
"""

from dataclasses import dataclass
from itertools import pairwise

from hpcpipe.analyze.accounting import Account
from hpcpipe.analyze.graph import Edge, TaskGraph, last_before
from hpcpipe.analyze.windows import Windows
from hpcpipe.events import RankLog
from hpcpipe.plan import Kind


@dataclass(frozen=True, slots=True)
class PathEntry:
    """One stretch of the path; the next one begins where it ends.

    `kind` is a task's, or for a gap the accounting class in lower case, with -1 where a gap has no micro-batch.
    `via` says what its begin waited for: "rank" (what the same rank did before), "message", "collective", "begin".
    """

    rank: int
    kind: str
    microbatch: int
    chunk: int
    step: int
    t_start: int
    t_end: int
    via: str

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.t_end - self.t_start


def critical_path(
    graph: TaskGraph, ranks: tuple[RankLog, ...], accounts: tuple[Account, ...], windows: Windows
) -> list[PathEntry]:
    """Return the path from the begin to the end of the windows; the lengths of its entries sum to their wall time."""
    walk = _Walk(graph, ranks, accounts, windows)
    return walk.back()


class _Walk:
    def __init__(
        self, graph: TaskGraph, ranks: tuple[RankLog, ...], accounts: tuple[Account, ...], windows: Windows
    ) -> None:
        self._graph, self._ranks, self._accounts, self._windows = graph, ranks, accounts, windows
        self._path: list[PathEntry] = []

    def back(self) -> list[PathEntry]:
        rank, time = self._last_rank(), self._windows.end
        begin = self._windows.begin
        tasks = self._graph.tasks
        while time > begin:
            task = last_before(self._graph, rank, time)
            if task < 0:
                self._gap(rank, begin, time, via="begin")
                break
            end = min(int(tasks.t_end[task]), time)
            self._gap(rank, max(end, begin), time, via="rank")
            start = max(int(tasks.t_start[task]), begin)
            edge = self._binding(task)
            via = "begin" if start == begin else "rank" if edge is None else _via(edge)
            self._task(task, start, end, via)
            rank, time = self._follow(task, edge, start) if start > begin else (rank, start)
        return self._path[::-1]

    def _last_rank(self) -> int:
        """Return the rank whose last task in the windows ends last."""
        tasks, bounds = self._graph.tasks, self._graph.bounds
        ends = [int(tasks.t_end[high - 1]) if high > low else -1 for low, high in pairwise(bounds.tolist())]
        return max(range(len(ends)), key=lambda index: ends[index])

    def _binding(self, task: int) -> Edge | None:
        """Return what came last from another rank, if it came after the task before on this rank was done."""
        edges = self._graph.edges.get(task)
        if not edges:
            return None
        edge = max(edges, key=lambda each: (each.arrival, each.left))
        start = int(self._graph.tasks.t_start[task])
        first = task == int(self._graph.bounds[self._graph.tasks.rank[task]])
        before = self._windows.begin if first else int(self._graph.tasks.t_end[task - 1])
        return edge if before < min(edge.arrival, start) and edge.left <= start else None

    def _follow(self, task: int, edge: Edge | None, start: int) -> tuple[int, int]:
        rank = int(self._graph.tasks.rank[task])
        if edge is None:
            return rank, start
        begin = self._windows.begin
        arrival = max(min(edge.arrival, start), begin)
        left = max(min(edge.left, arrival), begin)
        self._gap(rank, arrival, start, via=_via(edge))
        if arrival > left:
            self._add(task, edge.name.name.lower(), left, arrival, via="rank")
        return edge.source_rank, left

    def _task(self, task: int, start: int, end: int, via: str) -> None:
        if end > start:
            self._add(task, Kind(int(self._graph.tasks.kind[task])).name, start, end, via)

    def _add(self, task: int, kind: str, start: int, end: int, via: str) -> None:
        tasks = self._graph.tasks
        rank = self._ranks[int(tasks.rank[task])].rank
        numbers = int(tasks.microbatch[task]), int(tasks.chunk[task]), int(tasks.step[task])
        self._path.append(PathEntry(rank, kind, *numbers, start, end, via))

    def _gap(self, rank: int, start: int, end: int, via: str) -> None:
        for a, b, name in reversed(self._accounts[rank].pieces.between(start, end)):
            step = int(self._windows.steps[max(0, int(self._windows.edges.searchsorted(a, side="right")) - 1)])
            self._path.append(PathEntry(self._ranks[rank].rank, name.name.lower(), -1, 0, step, a, b, via))


def _via(edge: Edge) -> str:
    return "message" if edge.name.name == "TRANSFER" else "collective"
