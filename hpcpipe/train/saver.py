"""Saves the training while it goes on: a copy at a step's end, written by a thread, agreed on in the steps' sums.

Every rank writes its part. What the sums say of the parts is the same on all ranks, so all begin, end and give up a
checkpoint at the same step, and nobody waits for anybody. What a part holds is held.py's, how it lies on disk that of
checkpoint/.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hpcpipe.checkpoint import (
    Held,
    Manifest,
    commit,
    discard,
    make_partial,
    merge_parts,
    partial_bytes,
    prune,
    step_folder,
    write_part,
)
from hpcpipe.job.checkpoint import Checkpoint
from hpcpipe.runtime import World, now

_PAUSE_S = 0.002


class _Phase(Enum):
    IDLE, WRITING, COMMITTING = range(3)


@dataclass(frozen=True, slots=True)
class Target:
    """Where checkpoints go, and what else `keep` counts: the folders of this training's earlier starts."""

    folder: Path
    earlier: tuple[Path, ...] = ()


class Saver:
    """The checkpoints of one run on this rank. No method but `finish` waits, and that one not for MPI.

    Parameters
    ----------
    snapshot
        Copies what this rank saves.
    describe
        Steps done -> the manifest, without tensors; called on rank 0.
    record
        (step, begin, end, bytes): an interval in which saving held up the training (ns).

    Attributes
    ----------
    last
        The newest checkpoint that is whole, and its step; None while there is none.
    progress
        Grows while this rank writes.
    """

    entries = 4
    """How many numbers of each rank `row` adds to the step's sums."""

    def __init__(
        self,
        settings: Checkpoint,
        target: Target,
        *,
        world: World,
        snapshot: Callable[[], list[Held]],
        describe: Callable[[int], Manifest],
        record: Callable[[int, int, int, int], None],
        last: tuple[int, Path] | None = None,
    ) -> None:
        self._settings, self._target, self._world = settings, target, world
        self._snapshot, self._describe, self._record = snapshot, describe, record
        self._phase, self._step, self._sound, self._due = _Phase.IDLE, 0, True, False
        self._fault = ""
        self._thread: threading.Thread | None = None
        self._since = time.monotonic()
        self.last = last
        self.progress = self._written = 0

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way, the same on all ranks."""
        return self._phase is not _Phase.IDLE

    def row(self) -> tuple[float, float, float, float]:
        """Return what the sums over ranks need: writes, has failed, makes it whole, wants one because it is time."""
        works = float(self._thread is not None and self._thread.is_alive())
        seconds = self._settings.seconds
        wants = self._world.rank == 0 and seconds is not None and time.monotonic() - self._since >= seconds
        return (
            works * (self._phase is _Phase.WRITING),
            float(bool(self._fault)) * (not works),
            works * (self._phase is _Phase.COMMITTING),
            float(wants and self._phase is _Phase.IDLE),
        )

    def take(self, sums: Sequence[float], *, sound: bool) -> None:
        """Take the sums of `row`; `sound` says whether the step that they were posted with left finite numbers."""
        writing, failed, committing, wanted = sums
        self._due = self._due or wanted > 0
        if self._phase is _Phase.IDLE:
            return
        self._sound = self._sound and sound  # nothing that comes after a number that is none is worth keeping
        if self._phase is _Phase.WRITING and not writing:
            if failed:
                self._give_up()
            elif not self._sound:
                self._end()
                self._say(f"the state after step {self._step} is not saved: it holds numbers that are not finite")
            else:
                self._phase = _Phase.COMMITTING
                if self._world.rank == 0:
                    self._start(self._commit)
        elif self._phase is _Phase.COMMITTING and not committing:
            if failed:
                self._give_up()
            else:
                self.last = self._step, step_folder(self._target.folder, self._step)
                self._phase, self._thread = _Phase.IDLE, None

    def after_step(self, done: int) -> None:
        """Begin a checkpoint after `done` steps if it is time for one; a later step's turn if one is under way."""
        every = self._settings.steps
        self._due = self._due or (every is not None and done % every == 0)
        if self._due and self._phase is _Phase.IDLE:
            self._begin(done)

    def finish(self, done: int, exchange: Callable[[Sequence[float]], Sequence[float]], *, save: bool) -> None:
        """End what is under way, then save the state after `done` steps if it is not saved (collective).

        `exchange` sums a row over the ranks.
        """
        begin = now()
        self._drain(exchange)
        if save and done > 0 and (self.last is None or self.last[0] != done):
            self._begin(done)
            self._drain(exchange)
            self._record(done - 1, begin, now(), 0)

    def _drain(self, exchange: Callable[[Sequence[float]], Sequence[float]]) -> None:
        while self.busy:
            if self._thread is not None:
                self._thread.join(_PAUSE_S)
                written, self._written = self._written, partial_bytes(self._target.folder, self._step)
                self.progress += written != self._written
            self.take(exchange(self.row()), sound=True)

    def _begin(self, done: int) -> None:
        begin = now()
        self._phase, self._step, self._sound, self._due, self._fault = _Phase.WRITING, done, True, False, ""
        self._since = time.monotonic()
        try:
            pieces = self._snapshot()
        except (MemoryError, RuntimeError) as error:  # torch's word for memory that is not there
            self._fault = f"no memory for a copy: {error}"
            return
        self._start(lambda: self._write(pieces))
        self._record(done - 1, begin, now(), sum(piece.tensor.elements.nbytes for piece in pieces))

    def _start(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:  # whatever it is, the training goes on and all ranks hear of it
                strerror = error.strerror if isinstance(error, OSError) and error.filename is None else None
                self._fault = strerror or str(error) or type(error).__name__

        self._thread = threading.Thread(target=guarded, name="hpcpipe-checkpoint", daemon=True)
        self._thread.start()

    def _write(self, pieces: list[Held]) -> None:
        folder = make_partial(self._target.folder, self._step)
        write_part(folder, pieces, number=self._world.rank, count=self._world.size, note=self._note)

    def _commit(self) -> None:
        folder = self._target.folder
        commit(folder, self._step, merge_parts(folder, self._step, self._describe(self._step), self._world.size))
        prune([folder, *self._target.earlier], self._settings.keep)

    def _give_up(self) -> None:
        """Say why; all ranks come here after the same step, and a failure is rare enough to ask each of them."""
        faults = self._world.gather(self._fault)  # on rank 0, which speaks
        self._end()
        found = [(rank, fault) for rank, fault in enumerate(faults) if fault]
        rank, reason = found[0] if found else (0, "no reason was given")
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        kept = "there is none yet" if self.last is None else f"the last good one is {self.last[1]}"
        self._say(f"no checkpoint after step {self._step}, the training goes on; {kept}: rank {rank}{others}: {reason}")

    def _end(self) -> None:
        """Remove what was written in vain; every rank's thread has ended."""
        if self._world.rank == 0:
            discard(self._target.folder, self._step)
        self._phase, self._thread, self._fault = _Phase.IDLE, None, ""

    def _note(self, _: int) -> None:
        self.progress += 1

    def _say(self, sentence: str) -> None:
        if self._world.rank == 0:
            sys.stderr.write(f"hpcpipe: warning: {sentence}\n")
            sys.stderr.flush()
