"""Puts every nanosecond of every rank in exactly one class; the classes sum to the wall time, whatever the rows say.

Whole ns throughout. A rank's time is cut at every edge of a row and of a window, and each piece is named once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.rows import AGAIN, Rows
from hpcpipe.analyze.windows import Windows
from hpcpipe.plan import Kind, TimeClass

NUM_CLASSES = max(TimeClass) + 1

BUSY = {
    Kind.F: TimeClass.FORWARD,
    Kind.B: TimeClass.BACKWARD,
    Kind.W: TimeClass.WEIGHT,
    Kind.UPDATE: TimeClass.UPDATE,
    Kind.DATA: TimeClass.DATA,
    Kind.CHECKPOINT: TimeClass.CHECKPOINT,
}
"""Rows that are time of the rank. RS, AG, SEND and RECV run beside it, so they are not."""

BESIDE = {Kind.AGREE: TimeClass.AGREEMENT, Kind.NORM: TimeClass.EXPOSED_COMM}
"""Rows that may run beside the rank and name only the time that no other row covers."""

_SPLIT = (TimeClass.DEPENDENCY, TimeClass.WARMUP)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint intervals in order, with a class and the row that each comes from; some may be empty."""

    start: Ints
    end: Ints
    time_class: NDArray[np.uint8]
    row: Ints

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Pieces:
    """A rank's time in the windows as disjoint pieces without holes, in order: piece i from edge i to edge i + 1.

    `rows` are the indices of the rows that named the pieces, -1 where none did.
    """

    edges: Ints
    classes: NDArray[np.uint8]
    rows: Ints

    def between(self, start: int, end: int) -> list[tuple[int, int, TimeClass]]:
        """Return the pieces of an interval inside the windows, neighbours of one class joined."""
        low = max(int(self.edges.searchsorted(start, side="right")) - 1, 0)
        high = min(int(self.edges.searchsorted(end, side="left")), len(self.classes))
        edges, classes = self.edges[low : high + 1].tolist(), self.classes[low:high].tolist()
        found: list[tuple[int, int, TimeClass]] = []
        for i, code in enumerate(classes):
            a, b = max(start, edges[i]), min(end, edges[i + 1])
            if b <= a:
                continue
            if found and found[-1][2] == code:
                found[-1] = (found[-1][0], b, found[-1][2])
            else:
                found.append((a, b, _CLASS[code]))
        return found


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's ns by window (rows) and class (columns), the pieces that they are sums of, and what covers them."""

    totals: Ints
    pieces: Pieces
    busy: Spans
    waits: Spans


def account(rows: Rows, windows: Windows, ended: int | None) -> Account:
    """Classify a rank's time in the windows.

    Where rows overlap, work wins over waits and those over agreements and norms, and of two alike the one that started
    earlier. Time that no row covers is the runtime's own, or the drain once the rank has ended its last step.

    Parameters
    ----------
    rows
        At least those that overlap the windows.
    ended
        When the rank ended its last step (ns); None if it never did.
    """
    busy, waits, beside = _busy(rows), _waits(rows), _beside(rows)
    layers = [each for each in (beside, waits, busy) if len(each)]
    again = _again(rows)
    inside = [windows.edges]
    for spans in (*layers, again):
        inside += [spans.start, spans.end]
    if ended is not None:
        inside.append(np.array([ended], dtype=np.int64))
    edges = _sorted_unique(np.clip(np.concatenate(inside), windows.begin, windows.end))
    starts = edges[:-1]
    window = np.searchsorted(windows.edges, starts, side="right") - 1
    late = starts >= (windows.end if ended is None else ended)
    classes = np.where(late, int(TimeClass.DRAIN), int(TimeClass.RUNTIME)).astype(np.uint8)
    named_by = np.full(len(starts), -1, dtype=np.int64)
    for spans in layers:
        index = np.maximum(np.searchsorted(spans.start, starts, side="right") - 1, 0)
        covered = (spans.start[index] <= starts) & (spans.end[index] > starts)
        classes[covered] = spans.time_class[index[covered]]
        named_by[covered] = spans.row[index[covered]]
    if len(again):
        index = np.maximum(np.searchsorted(again.start, starts, side="right") - 1, 0)
        classes[(again.start[index] <= starts) & (again.end[index] > starts)] = TimeClass.RECOMPUTE
    early = np.flatnonzero((classes == TimeClass.WARMUP) & (named_by >= 0))
    early = early[windows.steps[window[early]] < rows.step[named_by[early]]]
    classes[early] = TimeClass.DRAIN
    totals = np.zeros(len(windows) * NUM_CLASSES, dtype=np.int64)
    np.add.at(totals, window * NUM_CLASSES + classes, np.diff(edges))
    return Account(totals.reshape(len(windows), NUM_CLASSES), Pieces(edges, classes, named_by), busy, waits)


def _busy(rows: Rows) -> Spans:
    """Return the rows that are time of the rank in order of start, each with the time that it really got."""
    which = np.flatnonzero(_BUSY_TABLE[rows.kind])
    classes = _BUSY_TABLE[rows.kind[which]]
    return _disjoint(rows.t_start[which], rows.t_end[which], classes, which)


def _again(rows: Rows) -> Spans:
    """Return what was computed again: its time is no work, though it lies within a backward, whose row it stays."""
    which = np.flatnonzero(rows.kind == AGAIN)
    classes = np.full(len(which), int(TimeClass.RECOMPUTE), dtype=np.uint8)
    return _disjoint(rows.t_start[which], rows.t_end[which], classes, which)


def _waits(rows: Rows) -> Spans:
    """Return the waits, each cut where the message that ended it was enqueued: from there on it was on its way."""
    which = np.flatnonzero(rows.kind == Kind.WAIT)
    names = rows.wait_class[which].astype(np.uint8)
    names[(names == TimeClass.NONE) | (names >= NUM_CLASSES)] = TimeClass.RUNTIME
    start, end = rows.t_start[which], rows.t_end[which]
    cut = transfer_begin(rows, which)
    moving = np.flatnonzero(cut < end)
    return _disjoint(
        np.concatenate([start, cut[moving]]),
        np.concatenate([cut, end[moving]]),
        np.concatenate([names, np.full(len(moving), TimeClass.TRANSFER, dtype=np.uint8)]),
        np.concatenate([which, which[moving]]),
    )


def transfer_begin(rows: Rows, waits: Ints) -> Ints:
    """Return since when the message that ended each wait was on its way; its end where it waited for none (ns)."""
    start, end, sent = rows.t_start[waits], rows.t_end[waits], rows.t_ready[waits]
    moved = np.isin(rows.wait_class[waits], _SPLIT) & (sent >= 0) & (rows.peer[waits] >= 0)
    return np.where(moved, np.clip(sent, start, np.maximum(start, end)), end)


def _beside(rows: Rows) -> Spans:
    which = np.flatnonzero(_BESIDE_TABLE[rows.kind])
    return _disjoint(rows.t_start[which], rows.t_end[which], _BESIDE_TABLE[rows.kind[which]], which)


def _disjoint(start: Ints, end: Ints, time_class: NDArray[np.uint8], row: Ints) -> Spans:
    """Order intervals by their start and cut each where an earlier one still runs."""
    if not len(start):
        return Spans(start, end, time_class, row)
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(np.maximum(start, end))
    begin = start.copy()
    begin[1:] = np.maximum(begin[1:], reached[:-1])
    return Spans(begin, np.maximum(begin, end), time_class[order], row[order])


def _sorted_unique(values: Ints) -> Ints:
    values.sort()
    keep = np.empty(len(values), dtype=np.bool_)
    keep[0] = True
    np.not_equal(values[1:], values[:-1], out=keep[1:])
    return values[keep]


def _table(classes: dict[Kind, TimeClass]) -> NDArray[np.uint8]:
    table = np.zeros(256, dtype=np.uint8)
    for kind, time_class in classes.items():
        table[kind] = time_class
    return table


_CLASS = tuple(TimeClass)
_BUSY_TABLE, _BESIDE_TABLE = _table(BUSY), _table(BESIDE)
