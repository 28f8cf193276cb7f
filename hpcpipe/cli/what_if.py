"""`hpcpipe analyze --what-if`: the answers as a table; the words and the simulation are analyze's."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from hpcpipe.cli.terminal import fullest, make_console, print_notes, print_table

if TYPE_CHECKING:
    from hpcpipe.analyze.what_if import Question, WhatIf
    from hpcpipe.analyze.windows import StepChoice
    from hpcpipe.events import RunLog
    from hpcpipe.plan import TimeClass

WHAT_IF_HELP = (
    "Simulate the recorded times otherwise; repeatable. HINT, and after commas a cap (1f1b, 2x, 6), k=N, fixed or "
    "ready; or ideal-network, no-straggler, or both with a hint."
)
_CAUSES = 4


def answer(run: "RunLog", questions: "Sequence[Question]", steps: "StepChoice") -> "WhatIf":
    """Simulate, with a bar on a terminal."""
    from rich.progress import Progress

    from hpcpipe.analyze.what_if import what_if

    with Progress(console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=None)
        return what_if(run, questions, steps, progress=lambda: bar.advance(task))


def print_answers(console: Console, found: "WhatIf") -> None:
    """Print a row an answer below the run as it was recorded and as it is simulated."""
    from hpcpipe.plan import USEFUL

    predictions = [found.own, *(each.prediction for each in found.answers)]
    lost = {
        each: sum(prediction.classes[each] for prediction in predictions)
        for each in found.own.classes
        if each not in USEFUL
    }
    worst = sorted((each for each in lost if lost[each]), key=lambda each: -lost[each])[:_CAUSES]
    print_table(console, fullest(lambda most: _table(found, sorted(worst[:most])), len(worst), console))
    lines = ["speed is over the simulated run itself; held: micro-batches that a stage holds at most"]
    if found.own_error is not None:
        lines.append(f"the simulation of the run itself is off by {found.own_error:.2%} a step (median)")
    print_notes(console, [*lines, *found.assumptions])
    console.print()


def _table(found: "WhatIf", causes: "Sequence[TimeClass]") -> Table:
    from hpcpipe.analyze.words import NAME, SHORT

    predictions = [found.own, *(each.prediction for each in found.answers)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title_justify="left", title_style="")
    table.title = "what if: the recorded times simulated again"
    table.add_column("", overflow="fold")
    for heading in ("step ms", "speed", "bubble", *(SHORT.get(each, NAME[each]) for each in causes), "held"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("as recorded", f"{found.recorded_step_ns / 1e6:.2f}")
    names = [f"simulated: {found.own.name}"]
    names += [", ".join([each.prediction.name, *each.question.changes]) for each in found.answers]
    fastest = min(each.step_ns for each in predictions)
    for name, each in zip(names, predictions, strict=True):
        whole = sum(each.classes.values()) or 1
        table.add_row(
            name,
            f"{each.step_ns / 1e6:.2f}",
            f"{found.own.step_ns / max(1, each.step_ns):.3f}x",
            f"{each.bubble_ratio:.1%}",
            *(f"{each.classes[cause] / whole:.1%}" for cause in causes),
            f"{max(each.peak_stash):g}",
            style="bold" if each.step_ns == fastest else "",
        )
    return table
