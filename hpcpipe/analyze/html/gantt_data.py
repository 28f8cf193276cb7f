"""What the page's Gantt draws, as one JSON document: spans, collectives and messages of some steps, packed.

Arrays are base64 of little-endian numbers, times ns from the first window's begin. gantt.js reads exactly this.
"""

from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.describe import placement
from hpcpipe.analyze.nodes import RankPart
from hpcpipe.analyze.palette import COLLECTIVES, USEFUL_LOOKS, WAITS
from hpcpipe.analyze.spans import TASK_CLASSES, RankSpans, rank_spans
from hpcpipe.analyze.stream import Cursor
from hpcpipe.analyze.summary import Batch, analysed
from hpcpipe.analyze.windows import StepChoice, Windows, make_windows
from hpcpipe.events import RunLog
from hpcpipe.plan import Kind

MOST_ROWS = 150_000
"""So many rows of the log at most go into a page, from the middle of the chosen steps; but one step always does."""


@dataclass(slots=True)
class _Lane:
    """One rank's spans and collectives, batch by batch."""

    spans: list[RankSpans] = field(default_factory=list)
    beside: list[NDArray[np.float64]] = field(default_factory=list)


def shown_steps(run: RunLog, steps: StepChoice = None) -> tuple[int, int]:
    """Return the first and the last step that a page shows in its Gantt."""
    windows, ranks = make_windows(run, steps)
    recorded = max((len(rank.steps) for rank in ranks), default=0) or len(windows)
    room = max(1, int(MOST_ROWS * recorded / max(1, sum(len(rank.rows) for rank in ranks))))
    low = max(0, (len(windows) - room) // 2)
    high = min(len(windows), low + room)
    return int(windows.steps[low]), int(windows.steps[high - 1])


def gantt_data(run: RunLog, steps: tuple[int, int]) -> dict[str, Any]:
    """Return the document of the steps, first and last included."""
    windows, ranks = make_windows(run, steps)
    cursors = tuple(Cursor(rank, windows) for rank in ranks)
    lanes = [_Lane() for _ in ranks]
    messages: list[NDArray[np.float64]] = []
    for batch in analysed(cursors, windows, placement(ranks[0].header)):
        for lane, part in zip(lanes, batch.parts, strict=True):
            lane.spans.append(rank_spans(part))
            lane.beside.append(_collectives(part, batch.windows, windows.begin))
        messages.append(_messages(batch, windows.begin))
    order = sorted(range(len(ranks)), key=lambda i: (ranks[i].header.stage, ranks[i].rank))
    place = np.empty(len(ranks), dtype=np.int64)
    place[order] = np.arange(len(ranks))
    table = np.concatenate(messages, axis=1)
    return {
        "wall": windows.wall,
        "steps": windows.steps.tolist(),
        "edges": (windows.edges - windows.begin).tolist(),
        "looks": _looks(),
        "lanes": [_lane(lanes[i], ranks[i].rank, ranks[i].header.stage, windows.begin) for i in order],
        "messages": {
            "from": _pack(place[table[0].astype(np.int64)], "<u2"),
            "to": _pack(place[table[1].astype(np.int64)], "<u2"),
            "sent": _pack(table[2], "<f8"),
            "seen": _pack(table[3], "<f8"),
        },
    }


def _collectives(part: RankPart, windows: Windows, begin: int) -> NDArray[np.float64]:
    rows = part.rows
    which = np.flatnonzero(
        np.isin(rows.kind, list(COLLECTIVES)) & (rows.t_end > windows.begin) & (rows.t_start < windows.end)
    )
    start = np.maximum(rows.t_start[which], windows.begin) - begin
    end = np.minimum(rows.t_end[which], windows.end) - begin
    return np.array([start, end, rows.kind[which], rows.microbatch[which]], dtype=np.float64)


def _messages(batch: Batch, begin: int) -> NDArray[np.float64]:
    """Return sender and receiver (as the ranks are counted here), when a message was enqueued and noticed."""
    messages = batch.graph.messages
    return np.array(
        [messages.sender, messages.receiver, messages.left - begin, messages.arrival - begin], dtype=np.float64
    )


def _lane(lane: _Lane, rank: int, stage: int, begin: int) -> dict[str, Any]:
    first = lane.spans[0].edges[:1]
    edges = np.concatenate([first, *(spans.edges[1:] for spans in lane.spans)]) - begin

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(spans, name) for spans in lane.spans])

    beside = np.concatenate(lane.beside, axis=1)
    return {
        "rank": rank,
        "stage": stage,
        "edges": _pack(edges, "<f8"),
        "classes": _pack(joined("classes"), "|u1"),
        "steps": _pack(joined("step"), "<i4"),
        "microbatches": _pack(joined("microbatch"), "<i4"),
        "chunks": _pack(joined("chunk"), "<i2"),
        "peers": _pack(joined("peer"), "<i4"),
        "flags": _pack(joined("flags"), "|u1"),
        "beside": {
            "starts": _pack(beside[0], "<f8"),
            "ends": _pack(beside[1], "<f8"),
            "kinds": _pack(beside[2], "|u1"),
            "buckets": _pack(beside[3], "<i4"),
        },
    }


def _looks() -> dict[str, Any]:
    classes = {
        int(code): {
            "name": look.name, "color": look.color, "ink": look.ink if code in USEFUL_LOOKS else look.edge,
            "hatch": (look.hatch or "")[:1], "wait": code not in USEFUL_LOOKS, "task": TASK_CLASSES.get(code, ""),
        }
        for code, look in {**USEFUL_LOOKS, **WAITS}.items()
    }  # fmt: skip
    collectives = {int(kind): {"name": look.name, "color": look.color} for kind, look in COLLECTIVES.items()}
    return {"classes": classes, "collectives": collectives, "kinds": {int(kind): kind.name for kind in Kind}}


def _pack(values: NDArray[Any], dtype: str) -> str:
    return b64encode(np.ascontiguousarray(values).astype(dtype).tobytes()).decode()
