"""Waits with their causes: the longest ones, each with the message or collective that ended it, and who was waited for.

It reads rows and their accounts; warm-up and drain, which every pipeline has, are left out.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.accounting import NUM_CLASSES, transfer_begin
from hpcpipe.analyze.nodes import Ints, RankPart
from hpcpipe.analyze.rows import Rows
from hpcpipe.analyze.windows import Windows
from hpcpipe.plan import FLAG_BACKWARD, Kind, Task, TimeClass

LONGEST = 10

_STRUCTURE = (TimeClass.WARMUP, TimeClass.DRAIN)
_COLLECTIVES = {Kind.RS: "reduce-scatter", Kind.AG: "all-gather", Kind.NORM: "norm of the gradients"}


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait. What it waited for: the message `message` of world rank `peer`, or `collective`, or neither is known.

    `transfer_ns` is the part of `ns` in which the message was on its way; `sent` and `t_end` are when it was enqueued
    there and noticed here (ns of rank 0's clock). `task` ran next. Tasks are named F3.1: kind, micro-batch, chunk.
    """

    rank: int
    stage: int
    step: int
    cause: str
    ns: int
    transfer_ns: int
    t_start: int
    t_end: int
    task: str = ""
    message: str = ""
    peer: int = -1
    sent: int = -1
    collective: str = ""


@dataclass(slots=True)
class WaitTable:
    """Collects the longest waits and the ns that ranks waited for each other, window by window."""

    longest: list[Wait] = field(default_factory=list)
    waited_for: dict[tuple[int, int, TimeClass], int] = field(default_factory=dict)
    """(world rank that waited, world rank waited for, DEPENDENCY or TRANSFER) -> ns."""

    def add(self, part: RankPart, windows: Windows) -> None:
        """Take in one rank's waits of some windows."""
        rows, rank = part.rows, part.log.rank
        spans = part.account.waits
        peers = rows.peer[spans.row]
        lengths = np.clip(spans.end, windows.begin, windows.end) - np.clip(spans.start, windows.begin, windows.end)
        for time_class in (TimeClass.DEPENDENCY, TimeClass.TRANSFER):
            of_class = (spans.time_class == time_class) & (peers >= 0) & (lengths > 0)
            for peer in np.unique(peers[of_class]).tolist():
                key = (rank, int(peer), time_class)
                ns = int(lengths[of_class & (peers == peer)].sum())
                self.waited_for[key] = self.waited_for.get(key, 0) + ns
        self._add_longest(part, windows)

    def _add_longest(self, part: RankPart, windows: Windows) -> None:
        rows = part.rows
        ended = (rows.t_end > windows.begin) & (rows.t_end <= windows.end)
        which = np.flatnonzero((rows.kind == Kind.WAIT) & ended & ~np.isin(rows.wait_class, _STRUCTURE))
        lengths = (rows.t_end - rows.t_start)[which]
        least = self.longest[-1].ns if len(self.longest) == LONGEST else 0
        which = which[lengths > least]
        if len(which) > LONGEST:
            lengths = (rows.t_end - rows.t_start)[which]
            which = which[np.argpartition(lengths, -LONGEST)[-LONGEST:]]
        found = [_describe(part, int(row), windows) for row in which]
        self.longest = sorted([*self.longest, *found], key=lambda wait: (-wait.ns, wait.rank, wait.t_start))[:LONGEST]


def _describe(part: RankPart, row: int, windows: Windows) -> Wait:
    rows = part.rows
    start, end = int(rows.t_start[row]), int(rows.t_end[row])
    cut = int(transfer_begin(rows, np.array([row]))[0])
    code = int(rows.wait_class[row])
    cause = TimeClass(code) if 0 < code < NUM_CLASSES else TimeClass.RUNTIME
    window = min(int(np.searchsorted(windows.edges, end, side="left")) - 1, len(windows) - 1)
    peer = int(rows.peer[row])
    message = collective = ""
    if peer >= 0:
        kind = Kind.B if int(rows.flags[row]) & FLAG_BACKWARD else Kind.F
        message = str(Task(kind, int(rows.microbatch[row]), int(rows.chunk[row])))
    elif cause is TimeClass.EXPOSED_COMM:
        collective = _collective_until(rows, start, end)
    return Wait(
        rank=part.log.rank,
        stage=part.log.header.stage,
        step=int(windows.steps[window]),
        cause=cause.name.lower(),
        ns=end - start,
        transfer_ns=end - cut,
        t_start=start,
        t_end=end,
        task=_next_task(part, end),
        message=message,
        peer=peer,
        sent=int(rows.t_ready[row]) if peer >= 0 else -1,
        collective=collective,
    )


def _next_task(part: RankPart, time: int) -> str:
    busy, rows = part.account.busy, part.rows
    index = int(np.searchsorted(busy.start, time, side="left"))
    if index == len(busy):
        return ""
    return _name(rows, int(busy.row[index]))


def _collective_until(rows: Rows, start: int, end: int) -> str:
    """Name the collective that ended last in a wait."""
    inside: NDArray[np.bool_] = np.isin(rows.kind, list(_COLLECTIVES)) & (rows.t_end > start) & (rows.t_end <= end)
    which: Ints = np.flatnonzero(inside)
    if not len(which):
        return ""
    row = int(which[np.argmax(rows.t_end[which])])
    kind = Kind(int(rows.kind[row]))
    return _COLLECTIVES[kind] if kind is Kind.NORM else f"{_COLLECTIVES[kind]} of bucket {int(rows.microbatch[row])}"


def _name(rows: Rows, row: int) -> str:
    kind = Kind(int(rows.kind[row]))
    if kind in (Kind.F, Kind.B, Kind.W):
        return str(Task(kind, int(rows.microbatch[row]), int(rows.chunk[row])))
    return kind.name.lower()
