"""A run as Chrome-trace JSON, which Perfetto and chrome://tracing read: a process a rank, flows for messages.

The format is the one of the "Trace Event Format" document; events are written as they are met, some windows at a time.
"""

import gzip
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hpcpipe.analyze.describe import describe, placement, title
from hpcpipe.analyze.nodes import RankPart
from hpcpipe.analyze.palette import COLLECTIVES
from hpcpipe.analyze.spans import TASK_CLASSES, rank_spans
from hpcpipe.analyze.stream import Cursor
from hpcpipe.analyze.summary import Batch, analysed
from hpcpipe.analyze.whole_file import whole_file
from hpcpipe.analyze.windows import StepChoice, Windows, make_windows
from hpcpipe.analyze.words import NAME
from hpcpipe.events import RankLog, RunLog
from hpcpipe.plan import FLAG_BACKWARD, USEFUL, TimeClass

TRACK_TASKS, TRACK_COLLECTIVES, TRACK_STEPS = 1, 2, 3
_TRACKS = {TRACK_TASKS: "tasks and waits", TRACK_COLLECTIVES: "collectives", TRACK_STEPS: "steps"}

Event = dict[str, Any]


def write_trace(run: RunLog, path: Path | str, steps: StepChoice = None) -> None:
    """Write the chosen steps as one JSON file, compressed where it is named .gz; it is put in place when it is whole.

    Raises
    ------
    AnalysisError
        No such step.
    OSError
        The file cannot be written.
    """
    path = Path(path)
    windows, ranks = make_windows(run, steps)
    opened = gzip.open if path.suffix == ".gz" else open
    with whole_file(path) as partial, opened(partial, "wt", encoding="utf-8") as file:
        _write(file, run, windows, ranks)


def _write(file: TextIO, run: RunLog, windows: Windows, ranks: tuple[RankLog, ...]) -> None:
    steps = int(windows.steps[0]), int(windows.steps[-1])
    about = {"title": title(run, *steps), "job": describe(run.header).name, "software": "hpcpipe"}
    file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n')
    separator = ""
    for event in trace_events(windows, ranks):
        file.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")


def trace_events(windows: Windows, ranks: tuple[RankLog, ...]) -> Iterator[Event]:
    """Yield the events; times in µs from the begin of the first window."""
    yield from _names(ranks)
    begin, numbers = windows.begin, count(1)
    for i, step in enumerate(windows.steps.tolist()):
        for rank in ranks:
            low, high = int(windows.edges[i]), int(windows.edges[i + 1])
            span = _slice(rank.rank, TRACK_STEPS, f"step {step}", "step", low, high, begin)
            yield {**span, "args": {"step": step}}
    cursors = tuple(Cursor(rank, windows) for rank in ranks)
    for batch in analysed(cursors, windows, placement(ranks[0].header)):
        for part in batch.parts:
            yield from _of_rank(part, batch.windows, begin)
        yield from _flows(batch, begin, numbers)


def _names(ranks: tuple[RankLog, ...]) -> Iterator[Event]:
    for rank in ranks:
        name = f"stage {rank.header.stage} · rank {rank.rank}"
        yield _meta(rank.rank, 0, "process_name", name=name)
        yield _meta(rank.rank, 0, "process_sort_index", sort_index=rank.header.stage * len(ranks) + rank.rank)
        for track, words in _TRACKS.items():
            yield _meta(rank.rank, track, "thread_name", name=words)
            yield _meta(rank.rank, track, "thread_sort_index", sort_index=track)


def _meta(pid: int, tid: int, what: str, **args: object) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _slice(pid: int, tid: int, name: str, category: str, start: int, end: int, begin: int) -> Event:
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category, "ts": (start - begin) / 1e3,
        "dur": (end - start) / 1e3,
    }  # fmt: skip


def _of_rank(part: RankPart, windows: Windows, begin: int) -> Iterator[Event]:
    """Yield what the rank did and waited for; the runtime's own time stays empty."""
    spans, pid = rank_spans(part), part.log.rank
    columns = (spans.classes, spans.edges[:-1], spans.edges[1:], spans.step, spans.microbatch, spans.chunk, spans.peer)
    for code, start, end, step, microbatch, chunk, peer, flags in zip(
        *(column.tolist() for column in (*columns, spans.flags)), strict=True
    ):
        time_class = TimeClass(code)
        if time_class is TimeClass.RUNTIME:
            continue
        letter = TASK_CLASSES.get(time_class)
        what = f"{letter or ('B' if flags & FLAG_BACKWARD else 'F')}{microbatch}" + (f".{chunk}" if chunk > 0 else "")
        args: dict[str, object] = {"step": step}
        if letter:
            args |= {"microbatch": microbatch, "chunk": chunk}
        elif peer >= 0:
            args |= {"until": what, "from_rank": peer}
        name = what if letter else NAME[time_class]
        category = "task" if letter or time_class in USEFUL else "wait"
        yield {**_slice(pid, TRACK_TASKS, name, category, start, end, begin), "args": args}
    rows = part.rows
    which = np.isin(rows.kind, list(COLLECTIVES)) & (rows.t_start >= windows.begin) & (rows.t_start < windows.end)
    chosen = rows.take(which)
    for kind, bucket, step, start, end in zip(
        *(column.tolist() for column in (chosen.kind, chosen.microbatch, chosen.step, chosen.t_start, chosen.t_end)),
        strict=True,
    ):
        name = f"{next(look.name for each, look in COLLECTIVES.items() if each == kind)} {bucket}"
        yield {**_slice(pid, TRACK_COLLECTIVES, name, "collective", start, end, begin), "args": {"step": step}}


def _flows(batch: Batch, begin: int, numbers: Iterator[int]) -> Iterator[Event]:
    """Yield an arrow a message, from the end of the task that made it to the begin of the task that it fed."""
    nodes, messages = batch.graph.nodes, batch.graph.messages
    pids = [part.log.rank for part in batch.parts]
    made_start, made_end = nodes.t_start[messages.source], nodes.t_end[messages.source]
    fed = nodes.t_start[messages.target]
    rows = (messages.sender, messages.receiver, made_start, made_end, fed)
    for sender, receiver, start, end, target in zip(*(column.tolist() for column in rows), strict=True):
        last = max(start, end - 1)  # the slice holds the instants before its end
        common = {"cat": "message", "name": "message", "id": next(numbers), "tid": TRACK_TASKS}
        yield {**common, "ph": "s", "pid": pids[sender], "ts": (last - begin) / 1e3}
        yield {**common, "ph": "f", "bp": "e", "pid": pids[receiver], "ts": (target - begin) / 1e3}
