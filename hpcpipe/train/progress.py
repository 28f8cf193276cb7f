"""Show a training's progress: a bar on a terminal, plain lines elsewhere; from rank 0 only."""

import os
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hpcpipe.train.metrics import StepMetrics

COLUMNS_VARIABLE = "HPCPIPE_TERMINAL_COLUMNS"
"""Set for the ranks by the process that starts them when its output is a terminal: rank 0 writes to it by a pipe."""


class Reporter(Protocol):
    """Told of every step that is known on all ranks."""

    def step(self, metrics: StepMetrics) -> None:
        """Show one step."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def terminal_columns() -> int | None:
    """Return the width of the terminal at the other end of stdout, or None if there is none."""
    if columns := os.environ.get(COLUMNS_VARIABLE):
        return int(columns)
    console = Console()
    return console.width if console.is_terminal else None


def make_console() -> Console:
    """Return a console that knows the terminal even through the launcher's pipe."""
    columns = terminal_columns()
    return Console(force_terminal=True, width=columns) if columns else Console(width=100, soft_wrap=True)


def make_reporter(*, steps: int, log_every: int, quiet: bool) -> Reporter:
    """Return what fits where stdout goes."""
    if quiet:
        return _Silent()
    return _Bar(steps) if terminal_columns() else _Lines(steps, log_every)


class _Silent:
    def step(self, metrics: StepMetrics) -> None:
        pass

    def close(self) -> None:
        pass


class _Lines:
    def __init__(self, steps: int, log_every: int) -> None:
        self._steps = steps
        self._log_every = log_every

    def step(self, metrics: StepMetrics) -> None:
        if metrics.step % self._log_every == 0 or metrics.step == self._steps - 1:
            print(f"step {metrics.step + 1:>{len(str(self._steps))}}/{self._steps}  {_words(metrics)}", flush=True)

    def close(self) -> None:
        pass


class _Bar:
    def __init__(self, steps: int) -> None:
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=make_console(),
        )
        self._task = self._progress.add_task("training", total=steps, words="")
        self._progress.start()

    def step(self, metrics: StepMetrics) -> None:
        self._progress.update(self._task, completed=metrics.step + 1, words=_words(metrics))

    def close(self) -> None:
        self._progress.stop()


def _words(metrics: StepMetrics) -> str:
    rate = metrics.tokens / (metrics.step_ns * 1e-9)
    return f"loss {metrics.loss:.4f}  {metrics.step_ns * 1e-6:.0f} ms  {rate:,.0f} tokens/s"
