"""Show a training's progress: a bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hpcpipe.cli.layout import describe
from hpcpipe.cli.terminal import make_console, terminal_columns
from hpcpipe.job import Job
from hpcpipe.job.datasets import OwnData
from hpcpipe.train import Layout, Reporter, StepMetrics


def make_reporter(job: Job) -> Reporter:
    """Return what fits where stdout goes."""
    return Bar(job) if terminal_columns() else Lines(job)


class Lines:
    """A line every `[job].log_every` steps, and for the last one."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._unit = _unit(job)

    def begin(self, layout: Layout) -> None:
        """Say what is about to be trained."""
        print(describe(self._job, layout), flush=True)

    def step(self, metrics: StepMetrics) -> None:
        """Print a line if it is time for one."""
        steps = self._job.run.steps
        if metrics.step % self._job.run.log_every == 0 or metrics.step == steps - 1 or metrics.eval_loss is not None:
            print(f"step {metrics.step + 1:>{len(str(steps))}}/{steps}  {_words(metrics, self._unit)}", flush=True)

    def note(self, sentence: str) -> None:
        """Print it at once."""
        print(sentence, flush=True)

    def close(self) -> None:
        """Leave what is printed."""


class Bar:
    """A progress bar that says loss, step time and rate."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._unit = _unit(job)
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=make_console(),
            refresh_per_second=4,  # rank 0 also computes
        )
        self._task: TaskID | None = None

    def begin(self, layout: Layout) -> None:
        """Say what is about to be trained and start the bar."""
        self._progress.console.print(describe(self._job, layout), highlight=False, markup=False)
        self._task = self._progress.add_task("", total=self._job.run.steps, words="")
        self._progress.start()

    def step(self, metrics: StepMetrics) -> None:
        """Move the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=metrics.step + 1, words=_words(metrics, self._unit))

    def note(self, sentence: str) -> None:
        """Print it above the bar."""
        self._progress.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Stop the bar and give the cursor back."""
        self._progress.stop()


def _unit(job: Job) -> str:
    return "samples" if isinstance(job.data, OwnData) else "tokens"


def _words(metrics: StepMetrics, unit: str) -> str:
    if not metrics.tokens:  # an emulated model has neither loss nor tokens
        return f"{metrics.step_ns * 1e-6:.1f} ms"
    rate = metrics.tokens / (metrics.step_ns * 1e-9)
    held_out = "" if metrics.eval_loss is None else f"  held-out loss {metrics.eval_loss:.4f}"
    return f"loss {metrics.loss:.4f}{held_out}  {metrics.step_ns * 1e-6:.0f} ms  {rate:,.0f} {unit}/s"
