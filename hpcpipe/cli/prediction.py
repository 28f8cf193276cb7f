"""Print what schedules would cost: a table with memory beside time, the critical path, the assumptions."""

import json
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from hpcpipe.analyze.prediction import Prediction
from hpcpipe.analyze.words import NAME, SHORT
from hpcpipe.cli.terminal import fullest, make_console, print_notes, print_table
from hpcpipe.job import Job
from hpcpipe.plan import USEFUL, TimeClass

_COLUMNS = 5


def print_predictions(
    baseline: Prediction, shown: Sequence[Prediction], assumptions: Sequence[str], error: float | None
) -> None:
    """Print the table; `error` is the simulation's relative error on the recorded run itself, where there is one."""
    console = make_console()
    job = shown[0].job
    title = Text(f"{job.run.name}: {job.parallel.pipeline} stages, {job.batch.microbatches} micro-batches, simulated")
    title.stylize("bold")
    console.print(title)
    rows = shown if any(each.name == baseline.name for each in shown) else [*shown, baseline]
    worst = _worst(rows)
    print_table(console, fullest(lambda most: _table(rows, sorted(worst[:most]), baseline), len(worst), console))
    console.print("speed is over fixed 1f1b; stash is the most micro-batches that a stage holds, MiB their activations")
    for each in rows:
        if each.critical_path:
            parts = [f"{share:.0%} {kind}" for kind, share in list(each.critical_path.items())[:_COLUMNS]]
            console.print(Text(f"critical path of {each.name}: {', '.join(parts)}".replace("_", " "), style="dim"))
    if error is not None:
        assumptions = [
            *assumptions,
            f"simulated under its own schedule, that run's steps are off by {error:.2%} (median)",
        ]
    console.print()
    print_notes(console, assumptions, style="")


def changes(job: Job, own: Job, tables: Sequence[str] = ("schedule", "parallel")) -> list[str]:
    """Return the settings that make those tables of a job out of its own."""
    found = []
    for table in tables:
        new, old = getattr(job, table), getattr(own, table)
        for key in type(new).model_fields:
            value = getattr(new, key)
            if value != getattr(old, key):
                found.append(f"{table}.{key}={json.dumps(value) if isinstance(value, tuple) else value}")
    return found


def _table(rows: Sequence[Prediction], lost: Sequence[TimeClass], baseline: Prediction) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("schedule", overflow="fold")
    for heading in ("step ms", "speed", "bubble", *(SHORT.get(each, NAME[each]) for each in lost), "stash", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    fastest = min(each.step_ns for each in rows)
    for each in rows:
        whole = sum(each.classes.values()) or 1
        table.add_row(
            each.name,
            f"{each.step_ns / 1e6:.2f}",
            f"{baseline.step_ns / max(1, each.step_ns):.3f}x",
            f"{each.bubble_ratio:.1%}",
            *(f"{each.classes[cause] / whole:.1%}" for cause in lost),
            f"{max(each.peak_stash):g}",
            f"{max(each.peak_bytes) / 2**20:.1f}",
            style="bold" if each.step_ns == fastest else "",
        )
    return table


def _worst(rows: Sequence[Prediction]) -> list[TimeClass]:
    """Return the classes in which most time is lost, the most first."""
    worst = sorted((each for each in rows[0].classes if each not in USEFUL), key=lambda each: -_sum(rows, each))
    return [each for each in worst[:_COLUMNS] if _sum(rows, each)]


def _sum(rows: Sequence[Prediction], each: TimeClass) -> int:
    return sum(row.classes[each] for row in rows)
