"""What a run leaves and shows: the files of its folder, its event log, metrics, decisions and progress.

It passes on what it is told, to whatever there is on this rank; what a step found is the loop's business.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from hpcpipe.checkpoint import Resume
from hpcpipe.events import EventWriter, LogHeader
from hpcpipe.job import Job
from hpcpipe.job.run_directory import write_whole
from hpcpipe.runtime import ClockSample, Mesh, Peer, StepTimes, World
from hpcpipe.train.event_log import EventLog
from hpcpipe.train.history import carry_metrics
from hpcpipe.train.layout import Layout
from hpcpipe.train.metrics import METRICS, MetricsFile, MetricsSink, StepMetrics
from hpcpipe.train.rank import NoLog
from hpcpipe.tune import Decision

_SHOWN = ("resume", "try", "roll back")
"""The decisions about the grouping that people see on the way; all are in the log."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from, for its log."""

    job_id: str = ""
    restart: int = 0
    git_revision: str = ""


class Reporter(Protocol):
    """Shows rank 0's progress to somebody."""

    def begin(self, layout: Layout) -> None:
        """Say what is about to be trained."""

    def step(self, metrics: StepMetrics) -> None:
        """Show a step whose loss is known on all ranks."""

    def note(self, sentence: str) -> None:
        """Show what has happened besides."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Records:
    """Those of this rank; only rank 0 has a reporter and files of the run's folder, and there may be no log."""

    def __init__(self, reporter: Reporter | None) -> None:
        self._reporter = reporter
        self._sinks: list[MetricsSink] = []
        self._log: EventLog | None = None

    def prepare(
        self, job: Job, run_directory: Path, environment: Mapping[str, object], *, first: int, resume: Resume | None
    ) -> None:
        """Write what is known beforehand into the run's folder, and open its metrics; on rank 0."""
        write_whole(run_directory / "job.toml", job.to_toml())
        write_whole(run_directory / "environment.json", _json(environment))
        source = run_directory if resume is None else resume.run
        if source is not None:
            carry_metrics(source, run_directory, first)
        self._sinks.append(MetricsFile(run_directory / METRICS))
        if job.run.tensorboard:
            from hpcpipe.train.tensorboard import TensorBoard

            self._sinks.append(TensorBoard(run_directory / "tensorboard"))

    def open_log(self, job: Job, header: LogHeader, *, world: World, run_directory: Path) -> None:
        """Open the event log (collective over the world).

        Raises
        ------
        OSError
            It is required and cannot be made.
        """
        self._log = EventLog(job.events, header, world=world, folder=run_directory / "events")

    @property
    def recorder(self) -> EventWriter | NoLog:
        """Where the engine's events go."""
        return NoLog() if self._log is None else self._log.recorder

    @property
    def faulty(self) -> bool:
        """Whether the log cannot be written at this moment, or rows are missing already."""
        return self._log is not None and self._log.faulty

    def begin(self, layout: Layout) -> None:
        """Show what is about to be trained."""
        if self._reporter is not None:
            self._reporter.begin(layout)

    def clock(self, sample: ClockSample) -> None:
        """Write down a comparison of clocks."""
        if (writer := self._writer) is not None:
            writer.clock(*sample)

    def decide(self, step: int, what: str, why: str) -> None:
        """Write down a decision that holds from a step on."""
        if (writer := self._writer) is not None:
            writer.decision(step, what, why)

    def say(self, sentence: str) -> None:
        """Show something beside the steps."""
        if self._reporter is not None:
            self._reporter.note(sentence)

    def tell(self, decision: Decision) -> None:
        """Write down what was decided about the grouping, and show it if it changes something."""
        self.decide(decision.step, "grouping", f"{decision.what}: {decision.why}")
        if decision.what in _SHOWN:
            self.say(f"step {decision.step}: {decision.grouping} ({decision.what}: {decision.why})")

    def step(self, metrics: StepMetrics, times: StepTimes, *, bucket_bytes: int, peak_bytes: int) -> None:
        """Write down a step whose sums are known, and show it."""
        if self._log is not None and (writer := self._writer) is not None:
            writer.step(
                metrics.step,
                times.begin,
                times.end,
                loss=metrics.loss,
                grad_norm=metrics.grad_norm,
                tokens=metrics.tokens,
                hint=metrics.hint,
                k=metrics.k,
                bucket_bytes=bucket_bytes,
                peak_bytes=peak_bytes,
            )
            self._log.settle(metrics.step)
        for sink in self._sinks:
            sink.write(metrics)
        if self._reporter is not None:
            self._reporter.step(metrics)

    def note_faulty(self, count: float) -> None:
        """Take how many ranks have a faulty log."""
        if self._log is not None:
            self._log.note_faulty(count)

    def last_words(self) -> None:
        """Save of the log what can be saved, where the process is about to be ended."""
        if self._log is not None:
            self._log.last_words()

    def finish(self) -> None:
        """End the log (collective over the world)."""
        if self._log is not None:
            self._log.finish()

    def close(self) -> None:
        """Close what is open; may be called twice."""
        for file in (self._log, *self._sinks, self._reporter):
            if file is not None:
                file.close()
        self._sinks, self._reporter = [], None

    @property
    def _writer(self) -> EventWriter | None:
        return None if self._log is None else self._log.writer


def write_ranks(run_directory: Path, everybody: Sequence[Peer]) -> None:
    """Write down who the ranks are."""
    write_whole(run_directory / "ranks.json", _json([asdict(peer) for peer in everybody]))


def log_header(job: Job, mesh: Mesh, world: World, origin: Origin, device: str) -> LogHeader:
    """Return what a log says of the rank that wrote it."""
    place = mesh.place
    return LogHeader(
        job_toml=job.to_toml(),
        job_sha256=job.sha256,
        world_size=world.size,
        mesh=(place.pipeline, place.data, place.tensor),
        rank=world.rank,
        coords=(place.stage, place.replica, place.slice),
        host=world.host,
        device=device,
        started_utc=datetime.now(UTC).isoformat(),
        job_id=origin.job_id,
        restart=origin.restart,
        mpi_library=world.mpi_library if world.gpu_aware is None else f"{world.mpi_library}; {world.gpu_aware.words}",
        git_revision=origin.git_revision,
    )


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
