"""The tasks of all ranks in the windows and what each waited for on other ranks: messages and collectives.

The replay and the critical path walk it; it decides neither what an ideal run nor what a path is.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.accounting import busy_rows
from hpcpipe.analyze.windows import Windows
from hpcpipe.events import FLAG_BACKWARD, Events, RankLog
from hpcpipe.plan import Kind, TimeClass

TASKS = (Kind.F, Kind.B, Kind.W, Kind.UPDATE)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks sorted by rank, then by start; `rank` counts the analysed ranks, it is not the world rank."""

    rank: Ints
    kind: Ints
    step: Ints
    microbatch: Ints
    chunk: Ints
    t_start: Ints
    t_end: Ints

    def __len__(self) -> int:
        return len(self.rank)


class Edge(NamedTuple):
    """What a task needed of another rank: ready there at `left` (its last task then: `source`), here at `arrival`."""

    source: int
    source_rank: int
    left: int
    arrival: int
    name: TimeClass


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tasks, the range of each rank's tasks, and the edges into every task that has some."""

    tasks: Tasks
    bounds: Ints
    edges: dict[int, list[Edge]]


def build_graph(ranks: tuple[RankLog, ...], windows: Windows) -> TaskGraph:
    """Collect the tasks that run in the windows and link them."""
    parts = [_tasks_of(index, rank.events, windows) for index, rank in enumerate(ranks)]
    tasks = Tasks(*(np.concatenate([getattr(part, name) for part in parts]) for name in Tasks.__dataclass_fields__))
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    graph = TaskGraph(tasks, bounds, {})
    columns = (tasks.rank, tasks.kind, tasks.step, tasks.microbatch, tasks.chunk)
    index = {key: i for i, key in enumerate(zip(*(column.tolist() for column in columns), strict=True))}
    _link_messages(graph, ranks, index)
    _link_collectives(graph, ranks, index)
    return graph


def last_before(graph: TaskGraph, rank: int, time: int) -> int:
    """Return the last task of a rank that starts before `time`, or -1."""
    low, high = int(graph.bounds[rank]), int(graph.bounds[rank + 1])
    found = low + int(np.searchsorted(graph.tasks.t_start[low:high], time, side="left")) - 1
    return found if found >= low else -1


def _tasks_of(index: int, events: Events, windows: Windows) -> Tasks:
    rows, spans = busy_rows(events)
    wanted = np.isin(rows.kind, TASKS) & (spans.end > windows.begin) & (spans.start < windows.end)
    rows = rows.take(wanted)
    columns = (rows.kind, rows.step, rows.microbatch, rows.chunk, spans.start[wanted], spans.end[wanted])
    rank = np.full(len(rows), index, dtype=np.int64)
    return Tasks(rank, *(np.asarray(column, dtype=np.int64) for column in columns))


_Index = dict[tuple[int, ...], int]


def _link_messages(graph: TaskGraph, ranks: tuple[RankLog, ...], index: _Index) -> None:
    positions = {rank.rank: i for i, rank in enumerate(ranks)}
    ends = graph.tasks.t_end
    for i, rank in enumerate(ranks):
        rows = rank.events.take(rank.events.kind == Kind.RECV)
        kinds = np.where(rows.flags & FLAG_BACKWARD, int(Kind.B), int(Kind.F))
        columns = (kinds, rows.step, rows.microbatch, rows.chunk, rows.peer, rows.t_end)
        for kind, step, microbatch, chunk, peer, arrival in zip(*(column.tolist() for column in columns), strict=True):
            task = index.get((i, kind, step, microbatch, chunk))
            source_rank = positions.get(peer)
            if task is None or source_rank is None:
                continue
            source = index.get((source_rank, kind, step, microbatch, chunk))
            if source is not None and source != task:
                edge = Edge(source, source_rank, int(ends[source]), arrival, TimeClass.TRANSFER)
                graph.edges.setdefault(task, []).append(edge)


def _link_collectives(graph: TaskGraph, ranks: tuple[RankLog, ...], index: _Index) -> None:
    """Link UPDATE to the reduce-scatters of its replicas, and the first task after an all-gather to the all-gathers."""
    started: dict[tuple[int, int, int, int, int], list[tuple[int, int]]] = {}
    done: list[tuple[int, int, int, int, int]] = []
    for i, rank in enumerate(ranks):
        rows = rank.events.take(np.isin(rank.events.kind, (Kind.RS, Kind.AG)))
        columns = (rows.kind, rows.step, rows.microbatch, rows.t_start, rows.t_end)
        for kind, step, bucket, start, end in zip(*(column.tolist() for column in columns), strict=True):
            started.setdefault((rank.header.stage, rank.header.coords[2], kind, step, bucket), []).append((i, start))
            done.append((i, kind, step, bucket, end))
    for i, kind, step, bucket, end in done:
        task = index.get((i, int(Kind.UPDATE), step, bucket, 0)) if kind == Kind.RS else _first_from(graph, i, end)
        if task is None:
            continue
        header = ranks[i].header
        for peer, start in started[(header.stage, header.coords[2], kind, step, bucket)]:
            if peer != i:
                source = _last_ended(graph, peer, start)
                graph.edges.setdefault(task, []).append(Edge(source, peer, start, end, TimeClass.EXPOSED_COMM))


def _first_from(graph: TaskGraph, rank: int, time: int) -> int | None:
    low, high = int(graph.bounds[rank]), int(graph.bounds[rank + 1])
    found = low + int(np.searchsorted(graph.tasks.t_start[low:high], time, side="left"))
    return found if found < high else None


def _last_ended(graph: TaskGraph, rank: int, time: int) -> int:
    low, high = int(graph.bounds[rank]), int(graph.bounds[rank + 1])
    found = low + int(np.searchsorted(graph.tasks.t_end[low:high], time, side="right")) - 1
    return found if found >= low else -1
