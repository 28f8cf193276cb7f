"""A run's rows some step windows at a time, all ranks together, so that a log of any length needs little memory.

Rows are taken in the order in which they were written; it neither classifies nor links them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.rows import OWN, Rows, read_rows
from hpcpipe.analyze.windows import Windows
from hpcpipe.events import RankLog, held_open
from hpcpipe.events.rows import CHUNK_ROWS
from hpcpipe.plan import Kind

_BLOCK_ROWS = 2 * CHUNK_ROWS
_BATCH_ROWS = 2_000_000
_LOOK_AHEAD = 256
"""So many rows of later windows must have been seen before a window is taken for whole: rows may swap places."""
_SEARCHED_ROWS = 64 * CHUNK_ROWS
_MARGIN_ROWS = 4 * CHUNK_ROWS
_RANGE_ROWS = 32 * CHUNK_ROWS
_OWN = np.isin(np.arange(256), OWN)

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Flight:
    """Counts forwards begun whose backward has not ended, of the chosen steps; `peak` is the most there were."""

    peak: int = 0
    _now: int = 0
    _times: list[Ints] = field(default_factory=list)
    _changes: list[Ints] = field(default_factory=list)

    def add(self, begun: Ints, ended: Ints) -> None:
        """Note when forwards began and backwards ended."""
        self._times += [begun, ended]
        self._changes += [np.ones(len(begun), dtype=np.int64), -np.ones(len(ended), dtype=np.int64)]

    def advance(self, until: int | None) -> None:
        """Count what happened before a time that no later row precedes; None counts all."""
        if not self._times:
            return
        times, changes = np.concatenate(self._times), np.concatenate(self._changes)
        order = np.lexsort((changes, times))  # at one instant, first what ends
        times, changes = times[order], changes[order]
        count = len(times) if until is None else int(np.searchsorted(times, until))
        if count:
            running = self._now + np.cumsum(changes[:count])
            self.peak, self._now = max(self.peak, int(running.max())), int(running[-1])
        self._times, self._changes = [times[count:]], [changes[count:]]


class Cursor:
    """Reads one rank's rows forward in time.

    On its way it counts forwards in flight, messages that seem to be noticed before they were sent, `early` (the most
    by `earliest` ns), and rows that lie too far behind later ones to be counted, `late`.
    """

    def __init__(self, rank: RankLog, windows: Windows) -> None:
        self.rank = rank
        self.flight = Flight()
        self.late = self.early = self.earliest = 0
        self._steps = windows.steps
        self._held: list[Rows] = []
        self._next = _search(rank, windows.begin)
        self._first = True

    def take(self, windows: Windows) -> Rows:
        """Return the rows that overlap the windows; windows must be asked for in order."""
        end = windows.end
        while self._next < len(self.rank.rows) and self._ahead(end) < _LOOK_AHEAD:
            self._read(windows.begin)
        self._first = False
        self.flight.advance(end if self._next < len(self.rank.rows) else None)
        if not self._held:
            return read_rows(self.rank, 0, 0)
        rows = Rows.joined(self._held)
        later = (rows.t_end >= end) | (rows.t_start >= end)
        self._held = [rows.take(later)]
        return rows.take((rows.t_start < end) & (rows.t_end > windows.begin))

    def _ahead(self, end: int) -> int:
        return sum(int(np.count_nonzero(_OWN[rows.kind] & (rows.t_start >= end))) for rows in self._held)

    def _read(self, begin: int) -> None:
        stop = min(self._next - self._next % CHUNK_ROWS + _BLOCK_ROWS, len(self.rank.rows))
        rows = read_rows(self.rank, self._next, stop)
        self._next = stop
        chosen = (rows.step >= self._steps[0]) & (rows.step <= self._steps[-1])
        self.flight.add(
            rows.t_start[chosen & (rows.kind == Kind.F)],
            rows.t_end[chosen & (rows.kind == Kind.B)],
        )
        received = np.flatnonzero((rows.kind == Kind.RECV) & (rows.t_ready >= 0))
        ahead = rows.t_ready[received] - rows.t_end[received]
        self.early += int(np.count_nonzero(ahead > 0))
        self.earliest = max(self.earliest, int(ahead.max(initial=0)))
        if not self._first:
            self.late += int(np.count_nonzero(_OWN[rows.kind] & (rows.t_start < begin)))
        keep = (rows.t_end >= begin) | (rows.t_start >= begin)
        self._held.append(rows if keep.all() else rows.take(keep))


def _search(rank: RankLog, begin: int) -> int:
    """Return a row before which nothing lies that a window beginning at `begin` needs; 0 in short logs."""
    if len(rank.rows) <= _SEARCHED_ROWS:
        return 0
    low, high = 0, len(rank.rows) // CHUNK_ROWS
    while low < high:
        middle = (low + high) // 2
        at = middle * CHUNK_ROWS
        if int(rank.rows.read(("t_end",), at, at + 1)["t_end"][0]) < begin:
            low = middle + 1
        else:
            high = middle
    return max(0, (low - 1) * CHUNK_ROWS - _MARGIN_ROWS)


def batches(cursors: tuple[Cursor, ...], windows: Windows) -> Iterator[Windows]:
    """Yield the windows some at a time, so many that their rows fit in memory well; the files stay open meanwhile."""
    rows = sum(len(cursor.rank.rows) for cursor in cursors)
    steps = max((len(cursor.rank.steps) for cursor in cursors), default=0)
    size = max(1, _BATCH_ROWS * max(steps, 1) // max(rows, 1))
    with held_open(cursor.rank.rows for cursor in cursors):
        yield from windows.batches(size)


def row_ranges(rank: RankLog, windows: Windows) -> Iterator[tuple[int, int]]:
    """Yield ranges of a rank's rows, aligned to the file's chunks, that together hold all rows of the windows."""
    first = _search(rank, windows.begin) // CHUNK_ROWS * CHUNK_ROWS
    late = 0
    for low in range(first, len(rank.rows), _RANGE_ROWS):
        high = min(low + _RANGE_ROWS, len(rank.rows))
        yield low, high
        late += int(rank.rows.read(("t_start",), high - 1, high)["t_start"][0]) >= windows.end
        if late > 1:
            return
