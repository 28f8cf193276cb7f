"""The chain of tasks and gaps over all ranks that set the length of each window, found by walking back from its end.

At each task: was it held by the task before it on its rank, or by what came last from another? It judges nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcpipe.analyze.accounting import Pieces
from hpcpipe.analyze.graph import TaskGraph
from hpcpipe.analyze.nodes import AGAIN
from hpcpipe.analyze.windows import Windows
from hpcpipe.plan import Kind, TimeClass

NUMBER_OF_GAPS = 100
"""Added to the number of a class, it is the code of a stretch that is no task."""


class PathEntry(NamedTuple):
    """One stretch of the path; the next one of its window begins where it ends.

    `kind` is a task's, or for a gap the accounting class in lower case, with -1 where a gap has no micro-batch.
    `via` says what its begin waited for: "rank" (what the same rank did before), "message", "collective", "begin".
    `peer` is the world rank at the other end of a transfer or collective, else -1.
    """

    rank: int
    kind: str
    microbatch: int
    chunk: int
    step: int
    t_start: int
    t_end: int
    via: str
    peer: int = -1

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.t_end - self.t_start


def kind_name(code: int) -> str:
    """Return the name of a task's kind or of a gap's class."""
    return TimeClass(code - NUMBER_OF_GAPS).name.lower() if code >= NUMBER_OF_GAPS else Kind(code).name


_NAMES = {code: kind_name(code) for code in (*Kind, *(NUMBER_OF_GAPS + each for each in TimeClass))}


def critical_paths(
    graph: TaskGraph, pieces: Sequence[Pieces], world_ranks: Sequence[int], windows: Windows
) -> list[PathEntry]:
    """Return the path of every window, one after the other; the lengths of each sum to the window's."""
    walk = _Walk(graph, pieces, world_ranks, windows)
    path: list[PathEntry] = []
    for window in range(len(windows)):
        path += walk.back(window)
    return path


class _Walk:
    def __init__(
        self, graph: TaskGraph, pieces: Sequence[Pieces], world_ranks: Sequence[int], windows: Windows
    ) -> None:
        self._graph, self._pieces, self._world_ranks, self._windows = graph, pieces, world_ranks, windows
        self._via = _via(graph, windows)
        self._path: list[PathEntry] = []
        self._step = self._begin = 0

    def back(self, window: int) -> list[PathEntry]:
        """Walk one window from its end."""
        self._path = []
        self._step = int(self._windows.steps[window])
        self._begin = begin = int(self._windows.edges[window])
        rank, time = int(self._windows.last[window]), int(self._windows.edges[window + 1])
        nodes, bounds = self._graph.nodes, self._graph.bounds
        while time > begin:
            low, high = int(bounds[rank, window]), int(bounds[rank, window + 1])
            node = low + int(nodes.t_start[low:high].searchsorted(time, side="left")) - 1
            if node < low:
                self._gap(rank, begin, time, "begin")
                break
            end = min(int(nodes.t_end[node]), time)
            self._gap(rank, end, time, "rank")
            start = int(nodes.t_start[node])
            via = "begin" if start == begin else self._via[node]
            if end > start:
                self._task(node, start, end, via)
            rank, time = self._follow(node, rank, start) if via in _REMOTE else (rank, start)
        return self._path[::-1]

    def _follow(self, node: int, rank: int, start: int) -> tuple[int, int]:
        """Go to the rank that the node waited for; return it and the time from which it went on without it."""
        incoming = self._graph.incoming
        source = int(incoming.source[node])
        arrival = max(min(int(incoming.arrival[node]), start), self._begin)
        left = max(min(int(incoming.left[node]), arrival), self._begin)
        self._gap(rank, arrival, start, self._via[node])
        if arrival > left:
            code = NUMBER_OF_GAPS + int(incoming.cause[node])
            self._task(node, left, arrival, "rank", code, self._world_ranks[source])
        return source, left

    def _task(self, node: int, start: int, end: int, via: str, code: int = -1, peer: int = -1) -> None:
        nodes = self._graph.nodes
        rank = self._world_ranks[int(nodes.rank[node])]
        numbers = int(nodes.microbatch[node]), int(nodes.chunk[node]), int(nodes.step[node])
        name = _NAMES[int(nodes.kind[node]) if code < 0 else code]
        self._path.append(PathEntry(rank, name, *numbers, start, end, via, peer))

    def _gap(self, rank: int, start: int, end: int, via: str) -> None:
        if end <= start:
            return
        for a, b, time_class in reversed(self._pieces[rank].between(start, end)):
            name = _NAMES[NUMBER_OF_GAPS + time_class]
            self._path.append(PathEntry(self._world_ranks[rank], name, -1, 0, self._step, a, b, via))


_REMOTE = ("message", "collective")


def _via(graph: TaskGraph, windows: Windows) -> list[str]:
    """Return what the begin of each node waited for: what came last from elsewhere, if after the node before was done.

    A node that begins with its window waited for nothing, which the walk sees for itself.
    """
    nodes, incoming = graph.nodes, graph.incoming
    before = windows.edges[nodes.window].copy()
    same = (nodes.rank[1:] == nodes.rank[:-1]) & (nodes.window[1:] == nodes.window[:-1])
    before[1:][same] = nodes.t_end[:-1][same]
    reached = np.minimum(incoming.arrival, nodes.t_start)
    binding = nodes.begins & (incoming.cause > 0) & (before < reached) & (incoming.left <= nodes.t_start)
    names = np.where(incoming.cause == TimeClass.TRANSFER, *_REMOTE)
    return np.where(binding, names, "rank").tolist()


assert NUMBER_OF_GAPS + TimeClass.RECOMPUTE == AGAIN
