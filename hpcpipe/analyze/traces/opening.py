"""Opens a run for the analysis, whoever wrote it: hpcpipe's event log, or traces that are made into one in memory.

What is missing of a trace, or only assumed, becomes a gap of the log, so every report says it.
"""

from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np

from hpcpipe.analyze.memory_log import memory_log
from hpcpipe.analyze.traces.layout import Layout, layout_of
from hpcpipe.analyze.traces.names import Role
from hpcpipe.analyze.traces.read import Trace, read_trace
from hpcpipe.analyze.traces.rows import Row, Work, rows_of, steps_of, work_of
from hpcpipe.events import LogError, LogHeader, RankLog, RunLog, open_run
from hpcpipe.events.reader import find_files
from hpcpipe.plan import Kind

DEVICE = "imported trace"
"""Stands as the device in the header of such a log."""

_ENDINGS = (".json", ".json.gz")


def open_log(path: Path | str) -> RunLog:
    """Open a run by `open_run`, or, where there are no event files but traces, by `import_traces`.

    Raises
    ------
    LogError
        There is neither, or it cannot be read.
    """
    path = Path(path)
    if path.name.endswith(_ENDINGS) and path.is_file():
        return import_traces(path)
    try:
        find_files(path)
    except LogError:
        if path.is_dir() and not (path / "job.toml").exists() and _traces_in(path):
            return import_traces(path)
        raise
    return open_run(path)


def _traces_in(folder: Path) -> list[Path]:
    return sorted(each for ending in _ENDINGS for each in folder.glob(f"*{ending}") if not each.name.startswith("."))


def import_traces(path: Path | str) -> RunLog:
    """Make a log of the Chrome traces in a folder, one file a rank, or of a single one.

    Raises
    ------
    LogError
        A file is no trace, two are of one rank, or no trace holds a task of a pipeline.
    """
    path = Path(path)
    files = [path] if path.is_file() else _traces_in(path)
    faults: list[str] = []
    traces: list[Trace] = []
    for file in files:
        try:
            traces.append(read_trace(file))
        except LogError as error:
            faults.append(str(error))
    if not traces:
        raise LogError("\n".join(faults) or f"{path}: no .json or .json.gz trace here")
    traces.sort(key=lambda trace: trace.rank)
    for rank, count in Counter(trace.rank for trace in traces).items():
        if count > 1:
            names = ", ".join(trace.path.name for trace in traces if trace.rank == rank)
            raise LogError(f"{path}: {count} traces of rank {rank} ({names}): keep one")
    useful = [trace for trace in traces if trace.of(Role.TASK)]
    if not useful:
        raise LogError(
            f"{path}: no pipeline tasks in these traces: looked for spans named PP:0F1 or Forward 1, as "
            "torch.distributed.pipelining names them"
        )
    begin = min(trace.spans[0].start for trace in useful)
    useful = [replace(trace, begin=begin) for trace in useful]
    layout = layout_of(useful)
    works = {trace.rank: work_of(trace, layout) for trace in useful}
    ends = {work.key: work.end for of_rank in works.values() for work in of_rank}
    toml = _job(path, layout, works)
    ranks = tuple(_rank_log(trace, rows_of(trace, works[trace.rank], layout, ends), layout, toml) for trace in useful)
    gaps = [f"left out: {fault}" for fault in faults]
    return RunLog(path, ranks, (*gaps, *_gaps(traces, useful, layout, ranks)))


def _job(path: Path, layout: Layout, works: dict[int, list[Work]]) -> str:
    """Return as much of a job as the traces tell, for titles and for where the virtual stages lie."""
    name = path.name.split(".")[0] or "traces"
    microbatches = 1 + max((work.key.microbatch for of_rank in works.values() for work in of_rank), default=0)
    hint = 'hint = "zbv"\n' if layout.placement.shape == "v" else ""
    return (
        f'[job]\nname = "{"".join(c for c in name if c.isprintable() and c not in chr(34) + chr(92))}"\n'
        f"[parallel]\npipeline = {layout.placement.stages}\ndata = {layout.replicas}\n"
        f"chunks = {layout.placement.chunks}\n[batch]\nmicrobatches = {microbatches}\n[schedule]\n{hint}"
    )


def _gaps(traces: list[Trace], useful: list[Trace], layout: Layout, ranks: tuple[RankLog, ...]) -> list[str]:
    gaps = [
        "made from Chrome traces: runtime is what the framework did outside tasks, clocks are the traces' own, "
        "ready-sets and memory are not in them"
    ]
    known = {trace.rank for trace in useful}
    idle = [trace.rank for trace in traces if trace.rank not in known]
    if idle:
        gaps.append(f"rank {', '.join(map(str, idle))}: no pipeline tasks in the trace")
    missing = sorted(set(range(max(trace.ranks for trace in traces))) - {trace.rank for trace in traces})
    if missing:
        gaps.append(f"rank {', '.join(map(str, missing))}: no trace")
    if not layout.numbered:
        gaps.append("the tasks name no stage: rank r is taken as stage r of one pipeline")
    if not all(trace.of(Role.STEP) for trace in useful):
        gaps.append("no ProfilerStep in a trace: all of it is one step")
    unknown = sum(int(np.count_nonzero((log.events.kind == Kind.RECV) & (log.events.t_ready < 0))) for log in ranks)
    if unknown:
        gaps.append(f"{unknown} messages whose sender's task is in no trace: waits for them cannot be split")
    return gaps


def _rank_log(trace: Trace, rows: list[Row], layout: Layout, toml: str) -> RankLog:
    """Return the log of a rank, with the steps in which it did something; each ends with the last thing done."""
    stage, replica = layout.place[trace.rank]
    header = LogHeader(
        job_toml=toml,
        job_sha256=sha256(toml.encode()).hexdigest(),
        world_size=max(trace.ranks, len(layout.place)),
        mesh=(layout.placement.stages, layout.replicas, 1),
        rank=trace.rank,
        coords=(stage, replica, 0),
        host="",
        device=DEVICE,
        started_utc="",
    )
    last: dict[int, int] = {}
    for row in rows:
        last[row.step] = max(last.get(row.step, 0), row.t_end)
    begins = {number: begin for number, begin, _ in steps_of(trace) if number in last}
    steps = sorted(begins)
    begun, ended = [begins[number] for number in steps], [last[number] for number in steps]
    return memory_log(header, rows, steps=steps, begins=begun, ends=ended)
