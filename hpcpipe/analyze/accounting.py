"""Puts every nanosecond of every rank in exactly one class; the classes sum to the wall time, whatever the rows say.

Whole ns throughout. A rank's time is cut at every edge of a row and of a window, and each piece is named once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.windows import Windows
from hpcpipe.events import Events, RankLog
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

_SPLIT = (TimeClass.DEPENDENCY, TimeClass.WARMUP)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A rank's time in the windows as disjoint pieces without holes, in order."""

    edges: Ints
    classes: Ints

    def between(self, start: int, end: int) -> list[tuple[int, int, TimeClass]]:
        """Return the pieces of an interval inside the windows, neighbours of one class joined."""
        low = max(int(np.searchsorted(self.edges, start, side="right")) - 1, 0)
        high = int(np.searchsorted(self.edges, end, side="left"))
        found: list[tuple[int, int, TimeClass]] = []
        for i in range(low, min(high, len(self.classes))):
            a, b = max(start, int(self.edges[i])), min(end, int(self.edges[i + 1]))
            name = TimeClass(int(self.classes[i]))
            if b <= a:
                continue
            if found and found[-1][2] is name:
                found[-1] = (found[-1][0], b, name)
            else:
                found.append((a, b, name))
        return found


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's ns by window (rows) and class (columns), and the pieces that they are sums of."""

    totals: Ints
    pieces: Pieces


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint intervals in order, with a class and a step each; some may be empty."""

    start: Ints
    end: Ints
    time_class: Ints
    step: Ints


def account(rank: RankLog, windows: Windows) -> Account:
    """Classify a rank's time in the windows.

    Where rows overlap, work wins over waits, and of two the one that started earlier; time that no row covers is the
    runtime's own, or the drain once the rank has ended its last step.
    """
    events = rank.events
    _, busy = busy_rows(events)
    waits = _waits(events)
    inside = [windows.edges]
    for spans in (busy, waits):
        inside += [np.clip(spans.start, windows.begin, windows.end), np.clip(spans.end, windows.begin, windows.end)]
    ended = int(rank.steps.t_end.max())
    inside.append(np.clip(np.array([ended], dtype=np.int64), windows.begin, windows.end))
    edges = np.unique(np.concatenate(inside))
    starts = edges[:-1]
    window = np.searchsorted(windows.edges, starts, side="right") - 1
    classes = np.where(starts >= ended, int(TimeClass.DRAIN), int(TimeClass.RUNTIME)).astype(np.int64)
    wait, waiting = _covering(waits, starts)
    if len(waits.start):
        early = (waits.time_class[wait] == TimeClass.WARMUP) & (windows.steps[window] < waits.step[wait])
        named = np.where(early, int(TimeClass.DRAIN), waits.time_class[wait])
        classes = np.where(waiting, named, classes)
    work, working = _covering(busy, starts)
    if len(busy.start):
        classes = np.where(working, busy.time_class[work], classes)
    totals = np.zeros((len(windows.steps), NUM_CLASSES), dtype=np.int64)
    np.add.at(totals, (window, classes), np.diff(edges))
    return Account(totals, Pieces(edges, classes))


def busy_rows(events: Events) -> tuple[Events, Spans]:
    """Return the rows that are time of the rank in order of start, and beside them the time that each really got."""
    table = np.zeros(256, dtype=np.int64)
    for kind, time_class in BUSY.items():
        table[kind] = time_class
    rows = events.take(table[events.kind] > 0)
    rows = rows.take(np.lexsort((rows.t_end, rows.t_start)))
    return rows, _disjoint(rows.t_start, rows.t_end, table[rows.kind], rows.step.astype(np.int64))


def _waits(events: Events) -> Spans:
    """Return the waits, each cut where the message that ended it was enqueued: from there on it was on its way."""
    rows = events.take(events.kind == Kind.WAIT)
    known = np.isin(rows.wait_class, [int(each) for each in TimeClass if each is not TimeClass.NONE])
    names = np.where(known, rows.wait_class, int(TimeClass.RUNTIME)).astype(np.int64)
    sent = np.isin(names, _SPLIT) & (rows.t_ready >= 0) & (rows.peer >= 0)
    cut = np.where(sent, np.clip(rows.t_ready, rows.t_start, np.maximum(rows.t_start, rows.t_end)), rows.t_end)
    step = rows.step.astype(np.int64)
    moving = np.full(len(names), int(TimeClass.TRANSFER), dtype=np.int64)
    return _disjoint(
        np.concatenate([rows.t_start, cut]),
        np.concatenate([cut, rows.t_end]),
        np.concatenate([names, moving]),
        np.concatenate([step, step]),
    )


def _disjoint(start: Ints, end: Ints, time_class: Ints, step: Ints) -> Spans:
    """Order intervals by their start and cut each where an earlier one still runs."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(np.maximum(start, end)) if len(start) else end
    begin = start.copy()
    begin[1:] = np.maximum(begin[1:], reached[:-1])
    return Spans(begin, np.maximum(begin, end), time_class[order], step[order])


def _covering(spans: Spans, starts: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Return for every piece the span that may cover it, and whether it does."""
    index = np.searchsorted(spans.start, starts, side="right") - 1
    found = np.maximum(index, 0)
    covered = (index >= 0) & (spans.end[found] > starts) if len(spans.start) else np.zeros(len(starts), dtype=np.bool_)
    return found, covered
