"""What a run says at its end: how the loss moved, where the time went, where everything is."""

from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from hpcpipe.analyze import plot_gantt, render_text, summarize
from hpcpipe.analyze.drawing import MISSING, can_draw
from hpcpipe.cli.garbage import collect_seldom
from hpcpipe.cli.terminal import file_console, make_console, say, suggest
from hpcpipe.events import open_run
from hpcpipe.exit_code import ExitCode
from hpcpipe.job.run_directory import write_whole
from hpcpipe.train import Outcome

if TYPE_CHECKING:
    from hpcpipe.job import Job

_PICTURED_STEPS = 2


def print_outcome(job: "Job", outcome: Outcome, directory: Path, *, quiet: bool) -> None:
    """Write `report.txt` and the pictures, and print the same to the terminal unless quiet."""
    if not quiet:
        emulated = job.device.kind == "emulated"
        loss = "" if emulated else f"loss from {outcome.first_loss:.4f} to {outcome.last_loss:.4f} in "
        done = outcome.steps - outcome.first_step
        after = f" after the first {outcome.first_step}" if outcome.first_step else ""
        say(f"{loss}{done} {'emulated ' if emulated else ''}steps{after}")
        if outcome.evaluations:
            say(_evaluations(outcome))
    if outcome.diverged:
        say(f"{outcome.diverged}: stopped on all ranks; try a smaller lr")
    elif outcome.exit_code == ExitCode.DIVERGED:
        say(f"the loss is not a number any more at step {outcome.steps - 1}: stopped on all ranks; try a smaller lr")
    if outcome.stopped_by:
        say(
            f"stopped on all ranks after step {outcome.steps} of {job.run.steps} by {outcome.stopped_by}; "
            f"{_how_to_go_on(job, outcome)}"
        )
    if job.events.on:
        console = make_console()
        collect_seldom()  # what draws is loaded now, and the steps are done
        try:
            with _drawing(console, quiet=quiet):
                table = _report(outcome, directory)
            if not quiet:
                console.print(table)
                _print_places(directory)
        except Exception as error:  # the training is done and saved; nothing here may make it look failed
            say(f"the report could not be made ({error}); try `hpcpipe analyze {directory}`")
    if quiet:
        return
    if outcome.checkpoint is not None:
        print(f"checkpoint     {outcome.checkpoint}", flush=True)
    print(f"run directory  {directory}", flush=True)
    if job.events.on:
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
    return f"to resume: --resume {outcome.checkpoint} (a requeued job does so by itself)"


def _drawing(console: Console, *, quiet: bool) -> AbstractContextManager[object]:
    if quiet or not console.is_terminal:
        return nullcontext()
    return console.status("reading the event log, drawing the pictures")


def _report(outcome: Outcome, directory: Path) -> RenderableType:
    """Write the report and the pictures, and return the report."""
    run = open_run(directory)
    table = render_text(summarize(run))
    text = StringIO()
    file_console(text).print(table)
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


def _print_places(directory: Path) -> None:
    print(f"event log      {directory / 'events'}", flush=True)
    drawn = "\n               ".join(map(str, _pictures(directory))) if can_draw() else f"none: {MISSING}"
    print(f"pictures       {drawn}", flush=True)
