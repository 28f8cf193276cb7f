"""A run's directory: what was trained, its metrics, its event log and what the log says; also while it goes on."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.job import Job

if TYPE_CHECKING:
    import polars as pl

    from hpcpipe.analyze import Report
    from hpcpipe.analyze.what_if import WhatIf
    from hpcpipe.events import RunLog

StepChoice = tuple[int | None, int | None] | None
"""First and last step, both included; None on a side takes all there are."""


class Run:
    """A finished or running run.

    Nothing is kept of what is read: each call reads what the ranks have written by then. Neither MPI nor torch is
    needed, so the run of a cluster can be looked at anywhere.

    Parameters
    ----------
    path
        A run directory, or a folder of runs with a `latest` (`runs/quickstart`).

    Raises
    ------
    FileNotFoundError
        There is no run: no `job.toml`.
    """

    def __init__(self, path: Path | str) -> None:
        given = Path(path)
        self.path = next((each for each in (given, given / "latest") if (each / "job.toml").is_file()), given)
        if not (self.path / "job.toml").is_file():
            raise FileNotFoundError(f"{given}: no run here: a run's directory has a job.toml")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def job(self) -> Job:
        """The resolved job, every value with its default.

        Raises
        ------
        ValueError
            The ranks have not begun yet: rank 0 writes it when they have met. Or it is no resolved job.
        """
        text = (self.path / "job.toml").read_text(encoding="utf-8")
        if not text:
            raise ValueError(f"{self.path}: the run has not begun: its job.toml is still empty")
        return Job.from_resolved(text)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, host and MPI library that the run was made with; empty before it has begun."""
        path = self.path / "environment.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return found

    @property
    def finished(self) -> bool:
        """Whether all ranks have closed their logs, which they also do when a run is stopped; False without logs."""
        from hpcpipe.events import LogError

        try:
            log = self.log()
        except LogError:
            return False
        return len(log.ranks) >= log.header.world_size and all(rank.complete for rank in log.ranks)

    @property
    def checkpoints(self) -> list[Path]:
        """The folders of its whole checkpoints, the newest first."""
        from hpcpipe.checkpoint import list_steps

        return list_steps(self.path / "checkpoints")

    def metrics(self) -> "pl.DataFrame":
        """Return a row a step, as in `metrics.jsonl`.

        Columns: `step` from 0, `loss` (mean over the global batch's tokens; null where it is no number), `grad_norm`
        before clipping, `lr`, `tokens`, `step_ns` (ns), `hint`, `k`, `dispatch` and more; `eval_loss` where samples are
        held out. Empty while no step is done.

        Raises
        ------
        ValueError
            The file holds something else than steps.
        """
        import polars as pl

        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        rows = [_step(line, path, number) for number, line in enumerate(lines, 1) if line.endswith("\n")]
        return pl.DataFrame(rows, infer_schema_length=None)

    def log(self) -> "RunLog":
        """Return the event log of all ranks, on rank 0's clock; rows are read from the files when they are asked for.

        Raises
        ------
        LogError
            There is none, or it cannot be read.
        """
        from hpcpipe.events import open_run

        return open_run(self.path)

    def report(self, steps: StepChoice = None, *, peak_tflops: float | None = None) -> "Report":
        """Say where the time went; what `hpcpipe analyze` prints.

        Every ns of every rank is in one class: `report.classes` are ns summed over ranks and sum to ranks · `wall_ns`.
        Efficiencies are those of POP.

        Parameters
        ----------
        steps
            First and last step, both included.
        peak_tflops
            Most TFLOP/s of one rank's device; adds the model FLOPs utilisation.

        Raises
        ------
        LogError, AnalysisError
            The log cannot be read, or holds no such step.
        """
        from hpcpipe.analyze import summarize

        return summarize(self.log(), steps, peak_tflops=peak_tflops)

    def pieces(self, steps: StepChoice = None) -> "Iterator[tuple[int, pl.DataFrame]]":
        """Yield each step with a frame of every rank's time without holes, classified.

        Columns: `rank`, `stage`, `class`, `t_start` and `t_end` (ns of rank 0's clock), `kind`, `row_step`,
        `microbatch`, `chunk`, `peer`. The lengths of every rank sum to the step's window.

        Raises
        ------
        LogError, AnalysisError
            The log cannot be read, or holds no such step.
        """
        from hpcpipe.analyze import frames

        return frames(self.log(), steps)

    def what_if(self, questions: Sequence[str], steps: StepChoice = None) -> "WhatIf":
        """Simulate the recorded times otherwise.

        Parameters
        ----------
        questions
            `"1f1b,fixed"`, `"zb-h1,2x"`, `"ideal-network"`, `"no-straggler"`, or both kinds in one.
        steps
            First and last step; the last 50 at most.

        Raises
        ------
        ValueError
            A question cannot be read.
        LogError, AnalysisError
            The log does not hold what a simulation needs, or a question does not go with the run.
        """
        from hpcpipe.analyze.what_if import read_question, what_if

        return what_if(self.log(), [read_question(each) for each in questions], steps)

    def plot(self, path: Path | str, steps: StepChoice = None) -> Path:
        """Draw a Gantt chart (.png or .svg) of some steps, best few, and return the file.

        Raises
        ------
        LogError, AnalysisError
            The log cannot be read, holds no such step, or more tasks than can be drawn.
        OSError
            The file cannot be written.
        """
        from hpcpipe.analyze import plot_gantt

        plot_gantt(self.log(), Path(path), steps)
        return Path(path)


def _step(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number}: no record of a step: {line.strip()[:40]!r}")
    return row
