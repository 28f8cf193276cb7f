"""The trainer's view of checkpoints: take back the one that a run goes on from, save new ones if the job says so.

Without `[checkpoint]` nothing is held, copied or sent. How a checkpoint is agreed on and written is saver.py's.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import FOLDER, Held, Resume, clean, earlier_starts, tokenizer_hash
from hpcpipe.job import Job
from hpcpipe.plan import Kind
from hpcpipe.runtime import World
from hpcpipe.train.history import add_start
from hpcpipe.train.resume import manifest_of, restore
from hpcpipe.train.saver import Saver, Target

if TYPE_CHECKING:
    from hpcpipe.plan import Recorder
    from hpcpipe.train.layout import Layout
    from hpcpipe.train.rank import Rank
    from hpcpipe.train.records import Origin
    from hpcpipe.train.scaler import LossScale


class Saving:
    """The checkpoints of a run on this rank; `entries` is how many numbers it adds to every step's sums."""

    def __init__(self, job: Job, saver: Saver | None) -> None:
        self._settings, self._saver = job.checkpoint, saver
        self._seen = 0
        self.entries = 0 if saver is None else Saver.entries

    @classmethod
    def of(
        cls,
        job: Job,
        layout: "Layout",
        rank: "Rank",
        *,
        world: World,
        run_directory: Path,
        origin: "Origin",
        resume: Resume | None,
        recorder: "Recorder",
        numbers: Callable[[], Mapping[str, float]] = dict,
    ) -> "Saving":
        """Take the state of `resume` if there is one, and get ready to save (collective over the world).

        `numbers` are what else must go on as it was, asked for on rank 0 with every checkpoint.

        Raises
        ------
        CheckpointError
            The state cannot be taken.
        """
        if resume is None and not job.checkpoint.on:
            return cls(job, None)
        from hpcpipe.train.held import Holdings

        holdings = Holdings(layout, rank.modules, rank.buckets, rank.place)
        if resume is not None:
            restore(resume, holdings, world)
            _restore_scale(rank.scale, resume.manifest.numbers)
        if world.rank == 0:
            _note_start(run_directory, origin, resume)
        if not job.checkpoint.on:
            return cls(job, None)
        folder = run_directory / FOLDER
        if world.rank == 0:
            clean(folder)  # before any rank writes: all meet again before the first step ends
        earlier = tuple(earlier_starts(job, origin.job_id, origin.restart)) if origin.job_id else ()

        def record(step: int, begin: int, end: int, num_bytes: int) -> None:
            recorder.event(Kind.CHECKPOINT, step, -1, 0, begin, begin, end, nbytes=num_bytes)

        kept: dict[str, float] = {}
        tokenizer = tokenizer_hash(job)  # of the file that the data are read with, whatever becomes of it

        def snapshot() -> list[Held]:
            rank.engine.gather()  # what replicas share is only whole then
            kept.clear()
            kept.update(loss_scale=rank.scale.value, good_steps=rank.scale.good_steps)
            kept.update({**rank.source.numbers(), **numbers()})
            return holdings.snapshot()

        return cls(
            job,
            Saver(
                job.checkpoint,
                Target(folder, tuple(each for each in earlier if each != folder.absolute())),
                world=world,
                snapshot=snapshot,
                describe=lambda step: manifest_of(job, holdings, step, origin.restart, kept, tokenizer),
                record=record,
                last=None if resume is None else (resume.step, resume.folder),
            ),
        )

    @property
    def newest(self) -> Path | None:
        """The newest whole checkpoint, None if there is none or none is wanted."""
        return None if self._saver is None or self._saver.last is None else self._saver.last[1]

    def after_step(self, done: int) -> None:
        """Begin a checkpoint of the state after `done` steps if it is time for one."""
        if self._saver is not None:
            self._saver.after_step(done)

    def row(self) -> Sequence[float]:
        """Return what all ranks must know of this one's part."""
        return () if self._saver is None else self._saver.row()

    def take(self, sums: Sequence[float], *, sound: bool) -> None:
        """Take the sums of `row`; `sound` says whether loss and gradients of their step were finite."""
        if self._saver is not None:
            self._saver.take(sums, sound=sound)

    def finish(
        self, done: int, exchange: Callable[[Sequence[float]], Sequence[float]], *, finite: bool, stopped: bool
    ) -> None:
        """Save the last state, if it is sound and the job wants it, and wait until it is on disk (collective)."""
        if self._saver is not None:
            self._saver.finish(done, exchange, save=finite and (self._settings.on_signal or not stopped))

    def moved(self) -> bool:
        """Return whether this rank has written something since the last call."""
        seen, self._seen = self._seen, 0 if self._saver is None else self._saver.progress
        return seen != self._seen


def _restore_scale(scale: "LossScale", numbers: Mapping[str, float]) -> None:
    """Let a loss scale that is looked for go on from where it was."""
    if scale.dynamic and "loss_scale" in numbers:
        scale.value, scale.good_steps = numbers["loss_scale"], int(numbers["good_steps"])


def _note_start(run_directory: Path, origin: "Origin", resume: Resume | None) -> None:
    source = run_directory if resume is None else resume.run
    start = {
        "run": str(run_directory.absolute()),
        "started_utc": datetime.now(UTC).isoformat(),
        "job_id": origin.job_id,
        "restart": origin.restart,
        "first_step": 0 if resume is None else resume.step,
        "checkpoint": None if resume is None else str(resume.folder),
    }
    add_start(source, run_directory, start)
