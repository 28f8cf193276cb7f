"""The training loop of one rank and what surrounds it: logs, metrics, the agreement on every step's loss.

A step's loss is known on all ranks one step later (runtime/ledger.py); nobody waits for it.
"""

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from hpcpipe.events import LogHeader
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job
from hpcpipe.job.run_directory import write_whole
from hpcpipe.runtime import (
    ClockSample,
    ClockWatch,
    FailureGuard,
    Ledger,
    Mesh,
    Peer,
    PeerWatch,
    Place,
    StepTimes,
    Waiting,
    World,
    choose_poll,
    compare_clocks,
)
from hpcpipe.train.environment import describe_environment
from hpcpipe.train.event_log import EventLog
from hpcpipe.train.layout import Layout, tokens_per_step
from hpcpipe.train.metrics import MetricsFile, StepMetrics
from hpcpipe.train.rank import Rank
from hpcpipe.train.schedule import rate_of
from hpcpipe.train.work import make_device


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from, for its log."""

    job_id: str = ""
    restart: int = 0
    git_revision: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended, the same on all ranks: the exit code, and the losses of the first and the last step."""

    exit_code: int
    first_loss: float
    last_loss: float
    steps: int


class Reporter(Protocol):
    """Shows rank 0's progress to somebody."""

    def begin(self, layout: Layout) -> None:
        """Say what is about to be trained."""

    def step(self, metrics: StepMetrics) -> None:
        """Show a step whose loss is known on all ranks."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def train(
    job: Job,
    *,
    world: World,
    run_directory: Path,
    origin: Origin,
    reporter: Reporter | None = None,
    before_step: Callable[[int, Rank], None] = lambda _step, _rank: None,
) -> Outcome:
    """Train on this rank (collective over the world).

    `reporter` is asked on rank 0 only; `before_step` is called on every rank, for tests that look at a rank or
    disturb it.

    Raises
    ------
    OSError
        The run directory cannot be written.
    """
    sizes = {"pipeline": job.parallel.pipeline, "data": job.parallel.data, "tensor": job.parallel.tensor}
    place = Place.of(world.rank, **sizes)
    with ExitStack() as cleanup:
        guard = FailureGuard(
            world.comm,
            place=str(place),
            stage=place.stage,
            host=world.host,
            run_directory=run_directory,
            last_words=cleanup.close,
        )
        with guard:
            layout = Layout.of(job)
            loop = _Loop(job, layout, Mesh(world.comm, **sizes), world, run_directory, origin, reporter, cleanup)
            outcome = loop.run(before_step)
            loop.finish()
    return outcome


class _Loop:
    def __init__(
        self,
        job: Job,
        layout: Layout,
        mesh: Mesh,
        world: World,
        run_directory: Path,
        origin: Origin,
        reporter: Reporter | None,
        cleanup: ExitStack,
    ) -> None:
        cleanup.callback(self.close_files)
        self._job, self._layout, self._mesh, self._world = job, layout, mesh, world
        self._emulated = job.device.kind == "emulated"
        device = make_device(job, sharing_ranks=mesh.sharing_ranks)
        poll: str = job.comm.poll
        if poll == "auto":  # emulated ranks leave the cores to each other, however few they are
            poll = "sleep" if self._emulated else choose_poll(poll, sharing_ranks=mesh.sharing_ranks)
        self._device = device
        self._log: EventLog | None = None
        self._metrics_file: MetricsFile | None = None
        self._reporter = reporter if world.rank == 0 else None
        if world.rank == 0:
            self._prepare(
                run_directory,
                describe_environment(
                    mpi_library=world.mpi_library,
                    git_revision=origin.git_revision,
                    threads=device.threads,
                    poll=poll,
                    device=device.name,
                ),
            )
        me = Peer.me(rank=world.rank, host=world.host, stage=mesh.place.stage)
        peers = [Peer(**introduction) for introduction in world.collect(asdict(me))]
        if world.rank == 0:
            write_whole(run_directory / "ranks.json", _json([asdict(peer) for peer in peers]))
        self._watch = PeerWatch(world.comm, peers, run_directory=run_directory, last_words=self._save_log)
        header = _log_header(job, mesh, world, origin, device.name)
        self._log = EventLog(job.events, header, world=world, folder=run_directory / "events")
        sample = compare_clocks(mesh.world)
        self._record_clock(sample)
        waiting = self._waiting = Waiting(poll)
        self._clocks = ClockWatch(mesh.world, self._record_clock) if job.events.on else None
        waiting.beside = None if self._clocks is None else self._clocks.poll
        self._rate = rate_of(job)
        self.rank = Rank(
            job,
            layout,
            mesh=mesh,
            device=device,
            waiting=waiting,
            recorder=self._log.recorder,
            clock_shifts=_clock_shifts(world, sample.offset),
        )
        self._ledger = Ledger(mesh.world, entries=3 + self.rank.source.entries, waiting=waiting)
        self._losses: list[float] = []
        if self._reporter is not None:
            self._reporter.begin(layout)

    def run(self, before_step: Callable[[int, Rank], None]) -> Outcome:
        """Run all steps, or fewer if the loss stops being a number."""
        times: list[StepTimes] = []
        for step in range(self._job.run.steps):
            before_step(step, self.rank)
            times.append(self.rank.engine.run_step(step))
            finite = self._settle(times)
            own = (self.rank.stage.loss(), self.rank.buckets.square_norm, self._log_is_faulty())
            self._ledger.post([*own, *self.rank.source.row()])
            if not finite:
                break
        finite = self._settle(times) and finite
        steps = len(self._losses)
        return Outcome(ExitCode.DONE if finite else ExitCode.DIVERGED, self._losses[0], self._losses[-1], steps)

    def finish(self) -> None:
        """End together: free what MPI holds, compare clocks once more, stop watching."""
        self.rank.free()
        self._waiting.beside = None
        if self._clocks is not None:
            self._clocks.close(self._waiting)
        self._record_clock(compare_clocks(self._mesh.world))
        if self._log is not None:
            self._log.finish()
        self.close_files()
        self._world.barrier()  # all work is done: from here on a rank that ends is no failure
        self._watch.close()
        self._world.barrier()  # nobody watches any more: from here on ranks may end
        self._mesh.free()

    def close_files(self) -> None:
        """Close what is open; may be called twice."""
        for file in (self._log, self._metrics_file, self._reporter):
            if file is not None:
                file.close()
        self._metrics_file = self._reporter = None

    def _prepare(self, run_directory: Path, environment: dict[str, object]) -> None:
        write_whole(run_directory / "job.toml", self._job.to_toml())
        write_whole(run_directory / "environment.json", _json(environment))
        self._metrics_file = MetricsFile(run_directory / "metrics.jsonl")

    def _record_clock(self, sample: ClockSample) -> None:
        if self._log is not None and self._log.writer is not None:
            self._log.writer.clock(*sample)

    def _save_log(self) -> None:
        if self._log is not None:
            self._log.last_words()

    def _log_is_faulty(self) -> float:
        return float(self._log is not None and self._log.faulty)

    def _settle(self, times: list[StepTimes]) -> bool:
        """Take the sums of the step posted last and pass them on; return whether its loss is a number."""
        sums = self._ledger.take()
        if sums is None:
            return True
        step = len(self._losses)
        loss, square_norm, faulty_logs, *measured = sums
        self.rank.source.take(measured)
        if self._emulated:
            loss = square_norm = math.nan
        self._losses.append(loss)
        settings = self._job.schedule
        metrics = StepMetrics(
            step=step,
            loss=loss,
            grad_norm=math.sqrt(square_norm) if square_norm >= 0 else math.nan,
            lr=self._rate(step),
            tokens=tokens_per_step(self._job),
            step_ns=times[step].end - times[step].begin,
            hint=settings.hint,
            k=self._layout.schedule.k or 0,
            dispatch=settings.dispatch,
        )
        self._write(metrics, times[step])
        if self._log is not None:
            self._log.note_faulty(faulty_logs)
        return self._emulated or math.isfinite(loss)

    def _write(self, metrics: StepMetrics, times: StepTimes) -> None:
        if self._log is not None and (writer := self._log.writer) is not None:
            writer.step(
                metrics.step,
                times.begin,
                times.end,
                loss=metrics.loss,
                grad_norm=metrics.grad_norm,
                tokens=metrics.tokens,
                hint=metrics.hint,
                k=metrics.k,
                bucket_bytes=sum(self.rank.buckets.num_bytes(b) for b in range(len(self.rank.buckets))),
                peak_bytes=self._device.peak_bytes(),
            )
            self._log.settle(metrics.step)
        if self._metrics_file is not None:
            self._metrics_file.write(metrics)
        if self._reporter is not None:
            self._reporter.step(metrics)


def _log_header(job: Job, mesh: Mesh, world: World, origin: Origin, device: str) -> LogHeader:
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
        mpi_library=world.mpi_library,
        git_revision=origin.git_revision,
    )


def _clock_shifts(world: World, offset: int) -> dict[int, int]:
    """Return by rank what to add to its times to get this rank's; ranks of one host share a clock (collective)."""
    others = world.collect([world.host, offset])
    return {rank: 0 if host == world.host else offset - theirs for rank, (host, theirs) in enumerate(others)}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
