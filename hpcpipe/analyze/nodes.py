"""Tasks as arrays: those of all ranks in some windows, cut where a window ends, and found again by their names.

What they waited for is graph.py's.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hpcpipe.analyze.accounting import Account, account
from hpcpipe.analyze.rows import Rows
from hpcpipe.analyze.stream import Cursor
from hpcpipe.analyze.windows import Windows
from hpcpipe.events import RankLog
from hpcpipe.plan import TimeClass

Ints = NDArray[np.int64]

AGAIN = 100 + int(TimeClass.RECOMPUTE)
"""The kind of a node that is a forward done again; nothing waits for it by name."""

_TASKS = np.isin(
    np.arange(256),
    [TimeClass.FORWARD, TimeClass.BACKWARD, TimeClass.WEIGHT, TimeClass.UPDATE, TimeClass.RECOMPUTE],
)


@dataclass(frozen=True, slots=True)
class RankPart:
    """One rank in some windows: its log, the rows that overlap them, and what they account for."""

    log: RankLog
    rows: Rows
    account: Account

    @classmethod
    def of(cls, cursor: Cursor, windows: Windows) -> "RankPart":
        """Take a rank's rows of the windows, which are asked for in order."""
        rows = cursor.take(windows)
        ended = int(cursor.rank.steps.t_end.max()) if windows.finished else None
        return cls(cursor.rank, rows, account(rows, windows, ended))


@dataclass(frozen=True, slots=True)
class Nodes:
    """Tasks cut at the edges of windows, sorted by rank, then by start. `rank` counts the analysed ranks.

    `begins`: the node is the beginning of its task, before which came what it needed from other ranks. `finish`: the
    node in which its task ends.
    """

    rank: Ints
    window: Ints
    kind: Ints
    step: Ints
    microbatch: Ints
    chunk: Ints
    t_start: Ints
    t_end: Ints
    begins: NDArray[np.bool_]
    finish: Ints

    def __len__(self) -> int:
        return len(self.rank)


def collect_nodes(parts: tuple[RankPart, ...], windows: Windows) -> Nodes:
    """Return the tasks that run in the windows."""
    found = [_of_rank(position, part, windows) for position, part in enumerate(parts)]
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    rank, kind, step, microbatch, chunk, start, end = columns
    first = np.maximum(np.searchsorted(windows.edges, start, side="right") - 1, 0)
    last = np.clip(np.searchsorted(windows.edges, end, side="left") - 1, first, len(windows) - 1)
    pieces = last - first + 1
    task = np.repeat(np.arange(len(rank)), pieces)
    offset = np.arange(len(task)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    window = first[task] + offset
    return Nodes(
        rank[task],
        window,
        kind[task],
        step[task],
        microbatch[task],
        chunk[task],
        np.maximum(start[task], windows.edges[window]),
        np.minimum(end[task], windows.edges[window + 1]),
        (offset == 0) & (start[task] >= windows.begin),
        np.arange(len(task)) + pieces[task] - 1 - offset,
    )


def _of_rank(position: int, part: RankPart, windows: Windows) -> tuple[Ints, ...]:
    busy = part.account.busy
    chosen = _TASKS[busy.time_class] & (busy.end > windows.begin) & (busy.start < windows.end)
    row = busy.row[chosen]
    kind = np.where(busy.time_class[chosen] == TimeClass.RECOMPUTE, AGAIN, part.rows.kind[row]).astype(np.int64)
    names = (part.rows.step[row], part.rows.microbatch[row], part.rows.chunk[row])
    whole = (np.asarray(name, dtype=np.int64) for name in names)
    return np.full(len(row), position, dtype=np.int64), kind, *whole, busy.start[chosen], busy.end[chosen]


class TaskIndex:
    """Finds the node with which a task begins, by rank (as counted here), kind, step, micro-batch and chunk.

    A table with a place for every possible name, or, where the names are too far apart for one, a join.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._whole = np.flatnonzero(nodes.begins & (nodes.kind != AGAIN))
        names = (nodes.rank, nodes.kind, nodes.step, nodes.microbatch, nodes.chunk)
        self._names = tuple(column[self._whole] for column in names)
        none = not len(self._whole)
        self._low = [0 if none else int(column.min()) for column in self._names]
        highest = [0 if none else int(column.max()) for column in self._names]
        self._sizes = [high - low + 1 for low, high in zip(self._low, highest, strict=True)]
        size = prod(self._sizes)
        self._table: Ints | None = None
        if size <= _DENSE * len(self._whole) + _SMALL:
            self._table = np.full(size + 1, -1, dtype=np.int64)  # the last place is for names that cannot be there
            self._table[self._places(*self._names)] = self._whole

    def find(self, rank: Ints, kind: Ints, step: Ints, microbatch: Ints, chunk: Ints) -> Ints:
        """Return the nodes of these tasks, -1 where one does not begin in the windows."""
        names = (rank, kind, step, microbatch, chunk)
        return self._joined(names) if self._table is None else self._table[self._places(*names)]

    def _places(self, *names: Ints) -> Ints:
        place = np.zeros(len(names[0]), dtype=np.int64)
        known = np.ones(len(names[0]), dtype=np.bool_)
        for column, low, size in zip(names, self._low, self._sizes, strict=True):
            known &= (column >= low) & (column < low + size)
            place = place * size + (column - low)
        return np.where(known, place, -1)

    def _joined(self, names: tuple[Ints, ...]) -> Ints:
        table = pl.DataFrame(dict(zip(_NAMES, self._names, strict=True))).with_columns(node=pl.Series(self._whole))
        table = table.unique(subset=_NAMES, keep="last", maintain_order=True)
        wanted = pl.DataFrame(dict(zip(_NAMES, names, strict=True)))
        found = wanted.join(table, on=_NAMES, how="left", maintain_order="left")
        return found["node"].fill_null(-1).to_numpy()


_NAMES = ("rank", "kind", "step", "microbatch", "chunk")
_DENSE, _SMALL = 16, 1 << 16
