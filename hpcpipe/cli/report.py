"""What a run says at its end: how the loss moved, where the time went, where everything is."""

from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from hpcpipe.analyze import plot_gantt, render_text, summarize
from hpcpipe.analyze.drawing import MISSING, can_draw
from hpcpipe.cli.terminal import make_console, suggest
from hpcpipe.events import open_run
from hpcpipe.exit_code import ExitCode
from hpcpipe.job.run_directory import write_whole
from hpcpipe.train import Outcome

if TYPE_CHECKING:
    from hpcpipe.job import Job

_PICTURED_STEPS = 2


def print_outcome(job: "Job", outcome: Outcome, directory: Path, *, quiet: bool) -> None:
    """Write `report.txt` and the pictures, and print the same to the terminal unless quiet."""
    console = make_console()
    if not quiet:
        emulated = job.device.kind == "emulated"
        loss = "" if emulated else f"loss from {outcome.first_loss:.4f} to {outcome.last_loss:.4f} in "
        done = outcome.steps - outcome.first_step
        after = f" after the first {outcome.first_step}" if outcome.first_step else ""
        console.print(f"{loss}{done} {'emulated ' if emulated else ''}steps{after}", highlight=False)
        if outcome.evaluations:
            console.print(_evaluations(outcome), highlight=False)
    if outcome.diverged:
        console.print(f"{outcome.diverged}: stopped on all ranks; try a smaller lr", soft_wrap=True, highlight=False)
    elif outcome.exit_code == ExitCode.DIVERGED:
        console.print(
            f"the loss is not a number any more at step {outcome.steps - 1}: stopped on all ranks; try a smaller lr"
        )
    if outcome.stopped_by:
        console.print(
            f"stopped on all ranks after step {outcome.steps} of {job.run.steps} by {outcome.stopped_by}; "
            f"{_how_to_go_on(job, outcome)}",
            soft_wrap=True,
            highlight=False,
        )
    if job.events.on:
        try:
            with _drawing(console, quiet=quiet):
                table = _report(outcome, directory)
            if not quiet:
                _print_report(table, directory, console)
        except Exception as error:  # the training is done and saved; nothing here may make it look failed
            console.print(f"the report could not be made ({error}); try `hpcpipe analyze {directory}`", soft_wrap=True)
    if not quiet and outcome.checkpoint is not None:
        console.print(f"checkpoint     {outcome.checkpoint}", soft_wrap=True, highlight=False)
    if not quiet:
        console.print(f"run directory  {directory}", soft_wrap=True, highlight=False)
    if not quiet and job.events.on:
        suggest("to see more", "analyze", directory, "--html", "page.html")


def _evaluations(outcome: Outcome) -> str:
    (first, begin), (last, end) = outcome.evaluations[0], outcome.evaluations[-1]
    what = f"held-out loss {end:.4f} after step {last}"
    return what if first == last else f"{what}, {begin:.4f} after step {first}"


def _how_to_go_on(job: "Job", outcome: Outcome) -> str:
    if not job.checkpoint.on:
        return "no checkpoint is configured, so a new start begins with the first step"
    if outcome.checkpoint is None:
        return "there is no checkpoint, so a new start begins with the first step"
    return f"to go on: --resume {outcome.checkpoint} (a requeued job does so by itself)"


def _drawing(console: Console, *, quiet: bool) -> AbstractContextManager[object]:
    if quiet or not console.is_terminal:
        return nullcontext()
    return console.status("reading the event log, drawing the pictures")


def _report(outcome: Outcome, directory: Path) -> RenderableType:
    """Write the report and the pictures, and return the report."""
    run = open_run(directory)
    table = render_text(summarize(run))
    text = StringIO()
    Console(file=text, width=100).print(table)
    if outcome.evaluations:
        text.write(_evaluations(outcome) + "\n")
    write_whole(directory / "report.txt", text.getvalue())
    middle = max(outcome.first_step, (outcome.first_step + outcome.steps) // 2 - 1)
    steps = (middle, min(outcome.steps - 1, middle + _PICTURED_STEPS - 1))
    for picture in _pictures(directory) if can_draw() else ():
        plot_gantt(run, picture, steps=steps)
    return table


def _pictures(directory: Path) -> list[Path]:
    return [directory / "gantt.png", directory / "gantt.svg"]


def _print_report(table: RenderableType, directory: Path, console: Console) -> None:
    console.print(table)
    console.print(f"event log      {directory / 'events'}", soft_wrap=True, highlight=False)
    drawn = "\n               ".join(map(str, _pictures(directory))) if can_draw() else f"none: {MISSING}"
    console.print(f"pictures       {drawn}", soft_wrap=True, highlight=False, markup=False)
