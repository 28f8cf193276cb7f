"""The training loop of one rank and what surrounds it: logs, metrics, the agreement on every step's loss.

A step's loss is known on all ranks one step later (runtime/ledger.py); nobody waits for it.
"""

import math
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from hpcpipe.checkpoint import Resume
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime import (
    ClockWatch,
    Failure,
    FailureGuard,
    Ledger,
    Mesh,
    Peer,
    PeerWatch,
    Place,
    StepTimes,
    StopWish,
    Waiting,
    Watchdog,
    World,
    choose_poll,
    clock_shifts,
    compare_clocks,
    introduce,
    read_peers,
    snapshot,
)
from hpcpipe.runtime.waiting import LONGEST_SLEEP, LONGEST_SLEEP_EMULATED
from hpcpipe.stop import describe
from hpcpipe.train.batches import evaluates_after, tokens_per_step
from hpcpipe.train.environment import describe_environment
from hpcpipe.train.fusion_tuning import fusion_tuning
from hpcpipe.train.guard import NonFiniteGuard
from hpcpipe.train.layout import Layout
from hpcpipe.train.metrics import StepMetrics
from hpcpipe.train.rank import Rank
from hpcpipe.train.records import Origin, Records, Reporter, log_header, write_ranks
from hpcpipe.train.replay import Replay
from hpcpipe.train.saving import Saving
from hpcpipe.train.schedule import rate_of
from hpcpipe.train.work import deal_gpus, make_device

_OWN_ENTRIES = 5
"""What each rank tells of a step itself: loss, squared norm, faulty log, held-out loss and how much that counts."""

_STEADY_AFTER = 2
"""Steps after which the memory of a device is expected to be what every later step needs."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a training ended, the same on all ranks: the exit code, and the losses of the first and the last step.

    `steps` counts those that are done, `first_step` of them by earlier starts. `stopped_by` names the signals that
    ended it before its last step, `diverged` is where a NaN or infinity arose, `checkpoint` the newest whole one.
    `evaluations` are the losses over what is held out, each with the number of steps done before it.
    """

    exit_code: int
    first_loss: float
    last_loss: float
    steps: int
    stopped_by: str = ""
    diverged: str = ""
    evaluations: tuple[tuple[int, float], ...] = ()
    first_step: int = 0
    checkpoint: Path | None = None


def train(
    job: Job,
    *,
    world: World,
    run_directory: Path,
    origin: Origin,
    reporter: Reporter | None = None,
    replay: Replay | None = None,
    before_step: Callable[[int, Rank], None] = lambda _step, _rank: None,
    early: StopWish | None = None,
    resume: Resume | None = None,
) -> Outcome:
    """Train on this rank (collective over the world).

    With `replay` the tasks run in its order, with `resume` from its step on. `reporter` is asked on rank 0 only;
    `before_step` is called on every rank, for tests that look at a rank or disturb it. What `early` has noted before
    is a wish to stop as well.

    Raises
    ------
    OSError
        The run directory cannot be written.
    """
    sizes = {"pipeline": job.parallel.pipeline, "data": job.parallel.data, "tensor": job.parallel.tensor}
    place = Place.of(world.rank, **sizes)

    def leave(number: int) -> None:
        name = signal.Signals(number).name
        reason = f"rank {world.rank} ({place}) on {world.host} got a second signal ({name}): the job ends at once"
        Failure(world.rank, place.stage, world.host, os.getpid(), 128 + number, reason).end(run_directory, world.comm)

    with StopWish(leave, early=early) as wish, ExitStack() as cleanup:
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
            if replay is not None:
                layout = replace(layout, held=replay.held)
            mesh = Mesh(world.comm, **sizes)
            loop = _Loop(job, layout, mesh, world, run_directory, origin, reporter, cleanup, replay, wish, resume)
            outcome = loop.run(before_step)
            loop.finish()
    return outcome


class _Ran(NamedTuple):
    """A step whose sums are not known yet: its times, what its loss was multiplied by, and how it was grouped."""

    times: StepTimes
    scale: float
    k: int
    microbatch_size: int


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
        replay: Replay | None,
        wish: StopWish,
        resume: Resume | None,
    ) -> None:
        records = self._records = Records(reporter if world.rank == 0 else None)
        cleanup.callback(records.close)
        self._job, self._layout, self._mesh, self._world = job, layout, mesh, world
        self._emulated = job.device.kind == "emulated"
        self._first = 0 if resume is None else resume.step
        if resume is not None:
            origin = replace(origin, restart=max(origin.restart, resume.manifest.restarts + 1))
        dealt = deal_gpus(job, world)
        if dealt.problem:
            raise RuntimeError(dealt.problem)
        gpu = None if dealt.numbers is None else dealt.numbers[world.rank]
        aware = world.gpu_aware is not None and world.gpu_aware.on
        device = make_device(job, sharing_ranks=mesh.sharing_ranks, gpu=gpu, gpu_aware=aware)
        poll: str = job.comm.poll
        if poll == "auto":  # emulated ranks leave the cores to each other, however few they are
            poll = "sleep" if self._emulated else choose_poll(poll, sharing_ranks=mesh.sharing_ranks)
        self._device = device
        if world.rank == 0:
            environment = describe_environment(
                mpi_library=world.mpi_library,
                git_revision=origin.git_revision,
                threads=device.threads,
                poll=poll,
                device=device.name,
                gpu_aware=world.gpu_aware,
            )
            records.prepare(job, run_directory, environment, first=self._first, resume=resume)
        me = Peer.me(rank=world.rank, host=world.host, stage=mesh.place.stage)
        beside, everybody = introduce(world, me)
        if world.rank == 0:
            write_ranks(run_directory, everybody)
        self._watch = PeerWatch(world.comm, beside, run_directory=run_directory, last_words=records.last_words)
        header = log_header(job, mesh, world, origin, device.name)
        records.open_log(job, header, world=world, run_directory=run_directory)
        sample = compare_clocks(mesh.world)
        records.clock(sample)
        longest = LONGEST_SLEEP_EMULATED if self._emulated else LONGEST_SLEEP
        waiting = self._waiting = Waiting(poll, longest_sleep=longest)
        self._clocks = ClockWatch(mesh.world, records.clock) if job.events.on else None
        waiting.beside = None if self._clocks is None else self._clocks.poll
        self._rate = rate_of(job)
        self.rank = Rank(
            job,
            layout,
            mesh=mesh,
            device=device,
            waiting=waiting,
            recorder=records.recorder,
            clock_shifts=clock_shifts(World(mesh.forward), mesh.place, sample.offset),
            replay=replay,
            resumed=None if resume is None else resume.manifest,
        )
        for decision in self.rank.begun:
            records.tell(decision)
        self._guard = NonFiniteGuard(job, layout, world=world, rank=self.rank)
        self._unsettled: deque[_Ran] = deque()
        self._dispatch = job.schedule.dispatch if replay is None else "replay"
        if replay is not None:
            records.decide(0, "order", f"replayed from {replay.source}")
        self._wish = wish
        self._fusion = fusion_tuning(
            job,
            self.rank,
            world=world,
            hosts=[peer.host for peer in everybody],
            resume=resume,
            decide=records.decide,
            say=records.say,
        )
        self._saving = Saving.of(
            job,
            layout,
            self.rank,
            world=world,
            run_directory=run_directory,
            origin=origin,
            resume=resume,
            recorder=records.recorder,
            numbers=self._fusion.numbers,
        )
        self._behind = self.rank.source.entries + self._fusion.entries  # of a row, behind what the saving tells
        entries = _OWN_ENTRIES + len(wish.came) + self._saving.entries + self._behind
        self._ledger = Ledger(mesh.world, entries=entries, waiting=waiting)
        self._phase = "before a step"
        self._watchdog = Watchdog(
            world.comm,
            me,
            everybody=lambda: read_peers(run_directory),
            run_directory=run_directory,
            timeout_s=job.run.hang_timeout,
            counters=self.rank.engine,
            describe=self._describe,
        )
        self._settled = 0
        self._losses = [math.nan, math.nan]  # of the first and the last step
        self._evaluations: list[tuple[int, float]] = []
        self._finite, self._stops = True, (0.0,) * len(wish.came)  # what came to this rank alone does not count
        records.begin(layout)

    def run(self, before_step: Callable[[int, Rank], None]) -> Outcome:
        """Run all steps, or fewer if the loss stops being a number or a rank is told to stop."""
        for step in range(self._first, self._job.run.steps):
            before_step(step, self.rank)
            self._fusion.before_step(step)
            self._phase = "step"
            scale = self.rank.scale.value
            times = self.rank.engine.run_step(step)
            k, size = self.rank.source.of(step).k or 0, self.rank.groupings.at(step).job.batch.microbatch_size
            self._unsettled.append(_Ran(times, scale, k, size))
            goes_on = self._look(step)
            self._settle()
            self._note_growth(step)
            if goes_on:
                self._saving.after_step(step + 1)
            own = (self.rank.loss, self.rank.buckets.square_norm, float(self._records.faulty), *self._evaluate(step))
            found = [*self.rank.source.row(step, times), *self._fusion.row(times)]
            self._ledger.post([*own, *self._wish.came, *self._saving.row(), *found])
            if not goes_on or not self._finite or any(self._stops):  # the same on all ranks, from sums over them
                break
        self._settle()
        steps = self._first + self._settled
        stopped_by = describe(self._stops, self._world.size) if self._finite and steps < self._job.run.steps else ""
        code = ExitCode.DIVERGED if not self._finite else ExitCode.REQUEUE if stopped_by else ExitCode.DONE
        self._fusion.finish(steps)
        self._phase = "saving"
        self._saving.finish(steps, self._exchange, finite=self._finite, stopped=bool(stopped_by))
        return Outcome(
            code,
            self._losses[0],
            self._losses[1],
            steps,
            stopped_by,
            diverged=self._guard.reason,
            evaluations=tuple(self._evaluations),
            first_step=self._first,
            checkpoint=self._saving.newest,
        )

    def _exchange(self, row: Sequence[float]) -> Sequence[float]:
        """Sum what the saving needs over the ranks, where there is no step whose sums could carry it."""
        before = _OWN_ENTRIES + len(self._wish.came)
        self._ledger.post([*[0.0] * before, *row, *[0.0] * self._behind])
        sums = self._ledger.take()
        assert sums is not None
        self.rank.engine.progress += self._saving.moved()
        return sums[before : before + len(row)]

    def finish(self) -> None:
        """End together: free what MPI holds, compare clocks once more, stop watching."""
        self._phase = "end"
        self.rank.free()
        self._waiting.beside = None
        if self._clocks is not None:
            self._clocks.close(self._waiting)
        self._records.clock(compare_clocks(self._mesh.world))
        self._records.finish()
        self._watchdog.close()
        self._records.close()
        self._world.barrier()  # all work is done: from here on a rank that ends is no failure
        self._watch.close()
        self._world.barrier()  # nobody watches any more: from here on ranks may end
        self._mesh.free()

    def _describe(self) -> dict[str, object]:
        inside = "" if self.rank.slices is None else self.rank.slices.under_way
        state = snapshot(self.rank.engine, self.rank.mailbox, self._mesh.place, in_collective=inside)
        return {"phase": self._phase, **state}

    def _evaluate(self, step: int) -> tuple[float, float]:
        """Return this rank's sums over what is held out, zeros where it is not the turn of an evaluation."""
        evaluator = self.rank.evaluator
        if evaluator is None or not evaluates_after(self._job, step):
            return 0.0, 0.0
        self._phase = "evaluation"
        self.rank.engine.gather()
        return evaluator.evaluate(waiting=self._waiting, moved=self.rank.engine.note_progress)

    def _look(self, step: int) -> bool:
        """Let the guard judge a step; return whether the run goes on."""
        goes_on = self._guard.look(step)
        if words := self._guard.news or self._guard.reason:
            self._records.decide(step, "not finite", words)
        if self._guard.news:
            self._records.say(self._guard.news)
        return goes_on

    def _settle(self) -> None:
        """Take the sums of the step posted last and pass them on."""
        self._phase = "sums"
        sums = self._ledger.take()
        self._phase = "between steps"
        if sums is None:
            return
        step, (taken, loss_scale, k, microbatch_size) = self._first + self._settled, self._unsettled.popleft()
        loss, square_norm, faulty_logs, held_out, held_out_count, *rest = sums
        wishes, entries = len(self._wish.came), self._saving.entries
        begin = wishes + entries + self.rank.source.entries
        for decision in self.rank.source.take(step, rest[wishes + entries : begin]):
            self._records.tell(decision)
        self._fusion.take(step, rest[begin:])
        if self._emulated:
            loss = square_norm = math.nan
        skipped = step in self._guard.skipped
        self._finite = (self._emulated or math.isfinite(loss) or skipped) and not self._guard.reason
        self._stops = tuple(rest[:wishes])
        self._losses = [self._losses[0] if self._settled else loss, loss]
        self._settled += 1
        if held_out_count:
            self._evaluations.append((step + 1, held_out / held_out_count))
        settings = self._job.schedule
        metrics = StepMetrics(
            step=step,
            loss=loss,
            grad_norm=math.sqrt(square_norm) if square_norm >= 0 else math.nan,
            lr=self._rate(step),
            tokens=tokens_per_step(self._job, step),
            step_ns=taken.end - taken.begin,
            hint=settings.hint,
            k=k,
            dispatch=self._dispatch,
            loss_scale=loss_scale,
            skipped=skipped,
            eval_loss=held_out / held_out_count if held_out_count else None,
            microbatch_size=microbatch_size,
        )
        buckets = self.rank.buckets
        reduced = sum(buckets.num_bytes(Task(Kind.RS, bucket)) for bucket in range(len(buckets)))
        self._records.step(metrics, taken, bucket_bytes=reduced, peak_bytes=self._device.peak_bytes())
        self._records.note_faulty(faulty_logs)
        sound = self._finite and (skipped or math.isfinite(square_norm))
        self._saving.take(rest[wishes : wishes + entries], sound=sound)

    def _note_growth(self, step: int) -> None:
        """Note where the memory of a GPU grows after its first steps: every block it asks for stops all streams."""
        if step - self._first >= _STEADY_AFTER and (grown := self._device.grown()):
            self._records.decide(step, "memory", grown)
