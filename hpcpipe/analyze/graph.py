"""What each task needed of other ranks: messages, and collectives in which ranks meet. Arrays only, all ranks at once.

The replay and the critical path walk it; it decides neither what an ideal run nor what a path is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.nodes import Ints, Nodes, RankPart, TaskIndex, collect_nodes
from hpcpipe.analyze.windows import Windows
from hpcpipe.plan import FLAG_BACKWARD, Kind, Placement, TimeClass


@dataclass(frozen=True, slots=True)
class Messages:
    """Node `source` sent to node `target` (both -1 where they are not in the windows): ready there, noticed here."""

    source: Ints
    target: Ints
    sender: Ints
    receiver: Ints
    left: Ints
    arrival: Ints


@dataclass(frozen=True, slots=True)
class Meetings:
    """Ranks that reduce or gather together. Attendance i: rank `rank` came to `meeting` at `came` and left at `left`.

    `before` is its last node until it came, `after` its first node that needed the result; -1 where there is none.
    """

    meeting: Ints
    rank: Ints
    came: Ints
    left: Ints
    before: Ints
    after: Ints


@dataclass(frozen=True, slots=True)
class Incoming:
    """Of each node, what came last from elsewhere: here at `arrival`, there ready at `left` on rank `source`.

    `cause` is TRANSFER, EXPOSED_COMM or NONE.
    """

    arrival: Ints
    left: Ints
    source: Ints
    cause: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Nodes and their links. `bounds[r, w]` to `bounds[r, w + 1]` are rank r's nodes in window w."""

    nodes: Nodes
    bounds: Ints
    messages: Messages
    meetings: Meetings
    incoming: Incoming


def build_graph(parts: tuple[RankPart, ...], windows: Windows, placement: Placement) -> TaskGraph:
    """Collect the tasks that run in the windows and link them."""
    nodes = collect_nodes(parts, windows)
    places = np.arange(len(parts) + 1)[:-1, None] * len(windows) + np.arange(len(windows) + 1)
    bounds = np.searchsorted(nodes.rank * len(windows) + nodes.window, places).astype(np.int64)
    index = TaskIndex(nodes)
    messages = _messages(parts, windows, placement, nodes, index)
    meetings = _meetings(parts, windows, nodes, bounds, index)
    return TaskGraph(nodes, bounds, messages, meetings, _incoming(len(nodes), messages, meetings))


def _messages(
    parts: tuple[RankPart, ...], windows: Windows, placement: Placement, nodes: Nodes, index: TaskIndex
) -> Messages:
    """Pair what was received with the task that it feeds and the task that made it: the neighbour's, one chunk on."""
    position = np.full(max(part.log.rank for part in parts) + 2, -1, dtype=np.int64)
    for i, part in enumerate(parts):
        position[part.log.rank] = i
    columns: list[tuple[Ints, ...]] = []
    for i, part in enumerate(parts):
        rows = part.rows
        which = np.flatnonzero((rows.kind == Kind.RECV) & (rows.t_end >= windows.begin) & (rows.t_end <= windows.end))
        backward = rows.flags[which] & FLAG_BACKWARD != 0
        chunk = rows.chunk[which].astype(np.int64)
        peer = np.where(rows.peer[which] < len(position) - 1, rows.peer[which], -1)
        made = _source_chunks(placement, part.log.header.stage)[backward.astype(int), np.clip(chunk, -1, _CHUNKS)]
        columns.append(
            (
                np.full(len(which), i, dtype=np.int64), np.where(backward, int(Kind.B), int(Kind.F)),
                rows.step[which].astype(np.int64), rows.microbatch[which].astype(np.int64), chunk,
                position[peer], made, rows.t_end[which],
            )
        )  # fmt: skip
    receiver, kind, step, microbatch, chunk, sender, made, arrival = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    target = index.find(receiver, kind, step, microbatch, chunk)
    source = index.find(sender, kind, step, microbatch, made)
    linked = (target >= 0) & (source >= 0) & (source != target)
    source = nodes.finish[source[linked]]
    return Messages(
        source, target[linked], sender[linked], receiver[linked], nodes.t_end[source], arrival[linked]
    )  # fmt: skip


_CHUNKS = 256


def _source_chunks(placement: Placement, stage: int) -> Ints:
    """Return the chunk there of the task that made what a chunk here needs: row 0 for forwards, 1 for backwards."""
    table = np.full((2, _CHUNKS + 2), -1, dtype=np.int64)
    if stage >= placement.stages:
        return table
    for chunk in range(min(placement.chunks, _CHUNKS)):
        virtual = placement.virtual(stage, chunk)
        for row, needed in enumerate((virtual - 1, virtual + 1)):
            if 0 <= needed < placement.virtual_stages:
                table[row, chunk] = placement.owner(needed)[1]
    return table


_MEETINGS = (int(Kind.RS), int(Kind.AG), int(Kind.NORM))


def _meetings(parts: tuple[RankPart, ...], windows: Windows, nodes: Nodes, bounds: Ints, index: TaskIndex) -> Meetings:
    """Let UPDATE follow the reduce-scatters of its replicas, and the first task after another collective that one.

    In a norm all ranks meet, because they agree in it whether the step is finite.
    """
    groups: dict[tuple[int, int], int] = {}
    columns: list[tuple[Ints, ...]] = []
    for i, part in enumerate(parts):
        rows, header = part.rows, part.log.header
        group = groups.setdefault((header.stage, header.coords[2]), len(groups))
        collective = np.isin(rows.kind, _MEETINGS)
        which = np.flatnonzero(collective & (rows.t_end >= windows.begin) & (rows.t_end <= windows.end))
        low, high = int(bounds[i, 0]), int(bounds[i, -1])
        starts, ends = nodes.t_start[low:high], nodes.t_end[low:high]
        came, left = rows.t_start[which], rows.t_end[which]
        before = low + np.searchsorted(ends, came, side="right") - 1
        after = low + np.searchsorted(starts, left, side="left")
        columns.append(
            (
                np.where(rows.kind[which] == Kind.NORM, -1, group), rows.kind[which].astype(np.int64),
                rows.step[which].astype(np.int64), rows.microbatch[which].astype(np.int64),
                np.full(len(which), i, dtype=np.int64), came, left,
                np.where(before >= low, before, -1), np.where(after < high, after, -1),
            )
        )  # fmt: skip
    groups_met, kind, step, bucket, rank, came, left, before, after = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    update = np.full(len(rank), int(Kind.UPDATE), dtype=np.int64)
    updates = index.find(rank, update, step, bucket, np.zeros(len(rank), dtype=np.int64))
    after = np.where(kind == Kind.RS, updates, after)
    names = np.stack([groups_met, kind, step, bucket]) if len(rank) else np.zeros((4, 0), dtype=np.int64)
    _, meeting = np.unique(names, axis=1, return_inverse=True)
    return Meetings(meeting.reshape(-1).astype(np.int64), rank, came, left, before, after)


def _incoming(count: int, messages: Messages, meetings: Meetings) -> Incoming:
    """Choose for each node the last arrival; a collective comes from the member that came to it last."""
    incoming = Incoming(
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.full(count, -1, dtype=np.int64),
        np.zeros(count, dtype=np.uint8),
    )
    order = np.lexsort((meetings.came, meetings.meeting))
    number, rank, came = meetings.meeting[order], meetings.rank[order], meetings.came[order]
    last = np.flatnonzero(np.append(number[1:] != number[:-1], True)) if len(number) else number
    last_rank, last_came = rank[last], came[last]  # by meeting, whose numbers are dense
    waited = np.flatnonzero(meetings.after >= 0)
    waited = waited[last_rank[meetings.meeting[waited]] != meetings.rank[waited]]
    waited = waited[np.lexsort((meetings.came[waited], meetings.left[waited]))]
    meeting = meetings.meeting[waited]
    _arrive(incoming, messages.target, TimeClass.TRANSFER, messages.arrival, messages.left, messages.sender)
    later = meetings.left[waited] > incoming.arrival[meetings.after[waited]]
    waited, meeting = waited[later], meeting[later]
    _arrive(
        incoming, meetings.after[waited], TimeClass.EXPOSED_COMM, meetings.left[waited], last_came[meeting],
        last_rank[meeting],
    )  # fmt: skip
    return incoming


def _arrive(incoming: Incoming, target: Ints, cause: TimeClass, arrival: Ints, left: Ints, source: Ints) -> None:
    """Set what came to nodes; of several to one node the last holds (numpy keeps the last of equal indices)."""
    incoming.cause[target] = cause
    incoming.arrival[target], incoming.left[target], incoming.source[target] = arrival, left, source
