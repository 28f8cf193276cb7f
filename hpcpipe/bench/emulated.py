"""Run a job on emulated devices step by step, each from a common start, beside what the simulator says of its steps.

Tasks only take their time; ranks, messages, runtime and log are real. Which jobs are compared is not known here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcpipe.device import Emulated, Finished
from hpcpipe.events import RankLog, open_run
from hpcpipe.job import Job, load_job
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import Kind, OnlineProfile, Schedule, gather
from hpcpipe.plan.hints import FAMILIES
from hpcpipe.simulate import Scenario, SimulatedStep, simulate_run
from hpcpipe.simulate.costs import emulated_costs
from hpcpipe.simulate.run import Messages

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.runtime import World
    from hpcpipe.train.rank import Rank

JOB = """
[job]
name = "emulated"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10
weight_ms = 5
message_bytes = 16384
"""

_MEET_S = 1e-4


@dataclass(frozen=True, slots=True)
class Steps:
    """How long each step took (ms), and the most micro-batches that any stage held.

    `in_flight` counts forwards without their backward, `stash` those without their weight gradient; both in
    micro-batches of a whole stage, so that chunks compare.
    """

    ms: tuple[float, ...]
    in_flight: float
    stash: float

    def after(self, warm_up: int) -> "Steps":
        """Return the same without the first steps."""
        return replace(self, ms=self.ms[warm_up:])


def emulated_job(folder: Path, overrides: list[str]) -> Job:
    """Return a job of emulated stages of 5 + 10 ms, changed by the overrides."""
    path = folder / "job.toml"
    if not path.exists():
        path.write_text(JOB)
    return load_job(path, overrides)


def predicted(job: Job, messages: Messages | None = None) -> Steps:
    """Simulate each step of a job by itself, as if nothing but its drawn times and delays took time.

    `messages`, if given, are how long messages take instead of the job's drawn delays.
    """
    costs, schedule = emulated_costs(job), schedule_of(job)
    learning = _Learning(schedule) if schedule.hint in FAMILIES and FAMILIES[schedule.hint].profiled else None
    done: list[SimulatedStep] = []
    for number in range(job.run.steps):
        now = schedule if learning is None else learning.schedule
        run = simulate_run(Scenario(now, costs.times, messages or costs.messages), [number])
        done += run.steps
        if learning is not None:
            learning.take(run.steps[0])
    chunks = schedule.placement.chunks
    return Steps(
        tuple(step.step_ns * 1e-6 for step in done),
        max(max(step.peak_in_flight) for step in done) / chunks,
        max(max(step.peak_stash) for step in done) / chunks,
    )


class _Learning:
    """A schedule that follows measured times, fed from simulated steps as the trainer feeds it from real ones."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._meters = [OnlineProfile(chunks=schedule.placement.chunks) for _ in range(schedule.placement.stages)]
        self._taken = 0

    def take(self, step: SimulatedStep) -> None:
        """Measure a step; make new orders after steps 2, 4, 8 and so on."""
        for meter, rows in zip(self._meters, step.rows, strict=True):
            for row in rows:
                if row.task is not None:
                    meter.add(row.task, row.end - row.start)
        for message in step.messages:
            self._meters[message.target].add_delay(message.arrived - message.sent)
        known = [times for meter in self._meters if (times := meter.end_step()) is not None]
        self._taken += 1
        if self._taken & (self._taken - 1) == 0 and self._taken > 1 and len(known) == len(self._meters):
            self.schedule = replace(self.schedule, profile=gather(known))


def meet(comm: "MPI.Intracomm") -> None:
    """Wait for all ranks without using the core that others still need."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(_MEET_S)


class Blocking(Emulated):
    """A device whose tasks keep the calling thread, as computing on the CPU does, but not the core."""

    def run(self, duration: int, output: memoryview | None = None) -> Finished:  # type: ignore[override]
        """Be done with a task of `duration` ns."""
        time.sleep(duration * 1e-9)
        return Finished(output)


def measured(
    job: Job, world: "World", folder: Path, *, prepare: "Callable[[Rank], None]" = lambda _rank: None
) -> Steps | None:
    """Run a job on all ranks, each step from a common start; None on all ranks but the first (collective).

    `folder` must exist and be the same on all ranks; `prepare` is called on every rank before the first step.
    """
    from hpcpipe.runtime import Place
    from hpcpipe.train import Origin, train

    stage = Place.of(world.rank, pipeline=job.parallel.pipeline, data=1, tensor=1).stage

    def start_together(step: int, rank: "Rank") -> None:
        if step == 0:
            prepare(rank)
        rank.source.of(step).stage_plan(stage)  # orders from new measurements are made once, and kept
        meet(world.comm)

    outcome = train(job, world=world, run_directory=folder, origin=Origin(), before_step=start_together)
    if outcome.exit_code:
        raise RuntimeError(f"a benchmark run of {job.schedule.hint} ended with exit code {outcome.exit_code}")
    meet(world.comm)
    return read(folder, chunks=job.chunks, split=job.splits) if world.rank == 0 else None


def read(folder: Path, *, chunks: int, split: bool) -> Steps:
    """Read the steps of a run's log: each lasts from its first rank's begin to its last one's end."""
    ranks = open_run(folder).ranks
    begin = np.min([log.steps.t_begin for log in ranks], axis=0)
    end = np.max([log.steps.t_end for log in ranks], axis=0)
    peaks = [(_peak(log, Kind.B), _peak(log, Kind.W if split else Kind.B)) for log in ranks]
    return Steps(
        tuple(((end - begin) * 1e-6).tolist()),
        max(in_flight for in_flight, _ in peaks) / chunks,
        max(stash for _, stash in peaks) / chunks,
    )


def _peak(log: RankLog, last: Kind) -> int:
    """Return the most forwards that had begun and whose `last` task had not ended."""
    events = log.events
    begins, ends = events.t_start[events.kind == Kind.F], events.t_end[events.kind == last]
    times = np.concatenate([ends, begins])
    changes = np.concatenate([np.full(len(ends), -1), np.full(len(begins), 1)])
    return int(np.max(np.cumsum(changes[np.argsort(times, kind="stable")]), initial=0))
