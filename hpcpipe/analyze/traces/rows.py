"""From the spans of a rank's trace to rows as hpcpipe's own log has them: tasks, messages, waits with their causes.

A framework that receives inside a task waits inside it: that part of the span is a wait here, and so is not work.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcpipe.analyze.traces.layout import Layout
from hpcpipe.analyze.traces.names import Role
from hpcpipe.analyze.traces.read import Span, Trace
from hpcpipe.plan import FLAG_BACKWARD, Kind, Task, TimeClass
from hpcpipe.plan.check import needs


class Key(NamedTuple):
    """A task of a replica in a step."""

    step: int
    replica: int
    kind: Kind
    virtual: int
    microbatch: int


class Row(NamedTuple):
    """The columns that an imported row has."""

    step: int
    microbatch: int
    kind: Kind
    chunk: int
    t_ready: int
    t_start: int
    t_end: int
    wait_class: TimeClass = TimeClass.NONE
    peer: int = -1
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A task: the span in which it lies, when it really worked, and when its message was asked for and had come."""

    key: Key
    chunk: int
    begun: int
    start: int
    end: int
    asked: int
    came: int


def steps_of(trace: Trace) -> list[tuple[int, int, int]]:
    """Return number, begin and end of each step; everything is one step where the profiler marked none."""
    marks = trace.of(Role.STEP)
    if marks:
        return [(mark.means.step, mark.start, mark.end) for mark in marks]
    spans = trace.spans
    return [(0, trace.begin, max(span.end for span in spans))] if spans else []


def work_of(trace: Trace, layout: Layout) -> list[Work]:
    """Return the rank's tasks in order."""
    steps = steps_of(trace)
    arrivals, sendings = _Timeline(trace.of(Role.ARRIVAL)), _Timeline(trace.of(Role.SENDING))
    announced: dict[tuple[Kind, int, int], list[Span]] = {}
    for span in trace.of(Role.RECV):
        if (arrival := arrivals.first(span.start, span.end)) is not None:
            announced.setdefault(_name(span), []).append(arrival)
    replica = layout.place[trace.rank][1]
    works: list[Work] = []
    for span in trace.of(Role.TASK):
        step, begin = next(((n, low) for n, low, high in steps if low <= span.start < high), (None, 0))
        if step is None:
            continue
        virtual = layout.virtual(trace.rank, span.means.stage)
        posted = [each for each in announced.get(_name(span), ()) if begin <= each.start <= span.end]
        arrival = posted[-1] if posted else arrivals.first(span.start, span.end)
        came = arrival.end if arrival else span.start
        start = min(max(came, span.start), span.end)
        sent = sendings.first(start, span.end)
        works.append(
            Work(
                key=Key(step, replica, span.means.kind, virtual, span.means.microbatch),
                chunk=layout.placement.owner(virtual)[1],
                begun=span.start,
                start=start,
                end=sent.start if sent else span.end,
                asked=arrival.start if arrival else span.start,
                came=min(came, start),
            )
        )
    return works


def _name(span: Span) -> tuple[Kind, int, int]:
    return span.means.kind, span.means.stage, span.means.microbatch


class _Timeline:
    """Finds spans by their start."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: span.start)
        self._starts = [span.start for span in self._spans]

    def first(self, low: int, high: int) -> Span | None:
        """Return the first span that starts between two times."""
        at = bisect_left(self._starts, low)
        return self._spans[at] if at < len(self._spans) and self._starts[at] <= high else None


def rows_of(trace: Trace, works: Sequence[Work], layout: Layout, ends: Mapping[Key, int]) -> list[Row]:
    """Return the rows of one rank in the order in which they ended; `ends` are those of the tasks of all ranks."""
    stage, replica = layout.place[trace.rank]
    rows: list[Row] = []
    free, step = 0, -1
    for work in works:
        key = work.key
        first, step = key.step != step, key.step
        task = Task(key.kind, key.microbatch, work.chunk)
        source = next((need for need in needs(stage, task, layout.placement) if need[0] != stage), None)
        peer = layout.rank_of.get((source[0], replica)) if source else None
        if source and peer is not None:
            virtual = layout.placement.virtual(source[0], source[1].chunk)
            sent = ends.get(Key(step, replica, key.kind, virtual, key.microbatch), -1)
            flags = FLAG_BACKWARD if key.kind is Kind.B else 0
            common = (step, key.microbatch)
            rows.append(Row(*common, Kind.RECV, work.chunk, sent, work.asked, work.came, peer=peer, flags=flags))
            begin = max(free, work.begun)
            if work.came > begin:
                why = TimeClass.WARMUP if first else TimeClass.DEPENDENCY
                rows.append(Row(*common, Kind.WAIT, work.chunk, sent, begin, work.came, why, peer, flags))
        rows.append(Row(step, key.microbatch, key.kind, work.chunk, work.start, work.start, work.end))
        free = work.end
    for number, begin, end in steps_of(trace):
        for role, kind in ((Role.UPDATE, Kind.UPDATE), (Role.DATA, Kind.DATA)):
            found = [span for span in trace.of(role) if begin <= span.start < end]
            rows += [Row(number, i, kind, 0, s.start, s.start, s.end) for i, s in enumerate(found)]
    return sorted(rows, key=lambda row: row.t_end)
