"""Print a tuning: a table with memory beside time, the reasons of what was left out, or one JSON document."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table
from rich.text import Text

from hpcpipe.cli.terminal import make_console, print_notes, print_table, say
from hpcpipe.job import Job
from hpcpipe.job.tune import show_bytes
from hpcpipe.tune import Pruned, batch_of
from hpcpipe.tune.offline import Line, Tuning

FORMAT, SCHEMA_VERSION = "hpcpipe-tune", "1.0.0"
MOST_ROWS = 16
_DIVIDE = "does not divide"


def print_tuning(job: Job, tuning: Tuning, *, why: bool, everything: bool) -> None:
    """Print the table, and the reasons if they are asked for."""
    console = make_console()
    batch, stages = batch_of(job), job.parallel.pipeline
    limit = job.tune.limit_bytes
    words = "no limit on memory" if limit is None else f"at most {show_bytes(limit)} a rank"
    console.print(Text(f"{job.run.name}: {batch} samples a step on {stages} stages, {words}", style="bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in ("k", "b", "micro-batches", "in flight", "memory", "predicted ms", "measured ms", "speed"):
        table.add_column(heading, justify="right", no_wrap=True)
    first = tuning.line(tuning.start).measured_ns
    lines = _shown(tuning, MOST_ROWS if not everything else len(tuning.lines))
    for line in lines:
        grouping = line.candidate.grouping
        table.add_row(
            str(grouping.k),
            str(grouping.microbatch_size),
            str(grouping.microbatches(batch)),
            _in_flight(grouping.in_flight(stages=stages, batch=batch)),
            show_bytes(max(line.candidate.peak_bytes)),
            "" if line.predicted_ns is None else f"{line.predicted_ns * 1e-6:.2f}",
            "" if line.measured_ns is None else f"{line.measured_ns * 1e-6:.2f}",
            "" if line.measured_ns is None or not first else f"{first / line.measured_ns:.3f}x",
            style="bold" if grouping == tuning.best else "" if line.measured_ns is not None else "dim",
        )
    print_table(console, table, keys=2)
    best = tuning.line(tuning.best)
    console.print(f"best: {tuning.best}, {show_bytes(max(best.candidate.peak_bytes))} on the fullest rank")
    notes = ["b: samples of a micro-batch; in flight: of the first to the last stage; memory: the fullest rank"]
    notes.append(f"speed is over {tuning.start}; the leanest within 1 % of the fastest is best")
    if len(lines) < len(tuning.lines):
        notes.append(
            f"{len(tuning.lines) - len(lines)} that were predicted only, and slower, are not shown; --all does"
        )
    if not why:
        notes.append(f"{len(tuning.pruned)} others were left out; --why says why")
    print_notes(console, notes)
    if why:
        _print_reasons(tuning.pruned, everything=everything)


def _shown(tuning: Tuning, most: int) -> list[Line]:
    """Return those that were measured and the fastest of the others, in their order."""
    by_time = sorted(tuning.lines, key=lambda line: (line.measured_ns is None, line.predicted_ns or 0))
    chosen = {line.candidate.grouping for line in by_time[:most]}
    return [line for line in tuning.lines if line.candidate.grouping in chosen]


def _print_reasons(pruned: Iterable[Pruned], *, everything: bool) -> None:
    hidden = 0
    for each in pruned:
        if each.reason.startswith(_DIVIDE) and not everything:
            hidden += 1
        else:
            say(f"{each.grouping}: {each.reason}")
    if hidden:
        say(f"{hidden} that do not divide the batch or its micro-batches; --all names them")


def _in_flight(held: tuple[int, ...]) -> str:
    return str(held[0]) if len(set(held)) == 1 else f"{held[0]} to {held[-1]}"


def print_json(job: Job, tuning: Tuning, written: Path | None) -> None:
    """Print the document; bytes and in flight are lists by stage, times ns."""
    batch, stages = batch_of(job), job.parallel.pipeline

    def of(line: Line) -> dict[str, Any]:
        grouping = line.candidate.grouping
        return {
            "k": grouping.k,
            "microbatch_size": grouping.microbatch_size,
            "microbatches": grouping.microbatches(batch),
            "in_flight": list(grouping.in_flight(stages=stages, batch=batch)),
            "peak_bytes": list(line.candidate.peak_bytes),
            "predicted_ns": line.predicted_ns,
            "measured_ns": line.measured_ns,
            "measured_steps": line.steps,
        }

    document = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "job": job.run.name,
        "batch": batch,
        "dispatch": job.schedule.dispatch,
        "memory_limit": job.tune.limit_bytes,
        "candidates": [of(line) for line in tuning.lines],
        "pruned": [
            {
                "k": each.grouping.k,
                "microbatch_size": each.grouping.microbatch_size,
                "caps": list(each.grouping.caps) or None,
                "reason": each.reason,
            }
            for each in tuning.pruned
        ],
        "start": of(tuning.line(tuning.start)),
        "best": of(tuning.line(tuning.best)),
        "written": None if written is None else str(written),
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
