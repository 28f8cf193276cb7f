"""The event log of a training rank: one file a rank or a node, and what happens when it cannot be written.

By default the training goes on: rank 0 says so once, and again at the end with every reason; nothing is lost unsaid.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcpipe.events import EventWriter, LogHeader, ring_bytes
from hpcpipe.job.schema import Events
from hpcpipe.runtime import NodeMemory, World
from hpcpipe.train.rank import NoLog

_PATIENCE_S = 60.0
_LAST_PATIENCE_S = 1.0
_FIRST_STEPS = 8
"""A run that dies does so in its first steps more often than later: they are in the file before the next one begins."""


class EventLog:
    """The log of this rank (collective over the world at creation and in `finish`).

    Raises
    ------
    OSError
        The log is required and cannot be made.
    """

    def __init__(self, settings: Events, header: LogHeader, *, world: World, folder: Path) -> None:
        self._settings = settings
        self._world = world
        self._header = header
        self._writer: EventWriter | None = None
        self._memory: NodeMemory | None = None
        self._fault = ""
        self._warned = False
        self._leads: bool = True
        if not settings.on:
            return
        if settings.aggregate == "rank" or not self._open_node(folder):
            self._open_own(folder)
        if self._fault and settings.required:
            raise OSError(self._fault)
        self._warn(world.gather(self._fault), "the training goes on")

    @property
    def recorder(self) -> EventWriter | NoLog:
        """Where the engine's events go."""
        return self._writer or NoLog()

    @property
    def writer(self) -> EventWriter | None:
        """The log, None where there is none."""
        return self._writer

    @property
    def faulty(self) -> bool:
        """Whether the log cannot be written at this moment, or rows are missing already."""
        writer = self._writer
        return bool(self._fault) or (writer is not None and (writer.fault is not None or writer.lost > 0))

    def settle(self, step: int) -> None:
        """Hand the events of a finished step to the thread that writes; wait for it in the first steps of a run.

        Raises
        ------
        OSError
            The log is required and cannot be written.
        """
        if self._writer is None:
            return
        if (step + 1) % self._settings.flush_every == 0:
            own_file = self._memory is None
            with suppress(OSError):  # it stays in `fault`
                self._writer.flush(wait=own_file and step < _FIRST_STEPS, patience_s=_LAST_PATIENCE_S)
        if self._settings.required and self.faulty:
            raise OSError(self._describe())

    def note_faulty(self, num_ranks: float) -> None:
        """Say once, on rank 0, that so many ranks cannot write their log."""
        if num_ranks and not self._warned and self._world.rank == 0:
            reason = self._describe() or "the reasons stand at the end"
            self._say(f"{_count(round(num_ranks))} cannot write the event log, the training goes on: {reason}")
            self._warned = True

    def finish(self) -> None:
        """Close the log and say what is missing of it.

        Raises
        ------
        OSError
            The log is required and could not be written.
        """
        if not self._settings.on:
            return
        if not self._leads:
            self.close(patience_s=_PATIENCE_S)
        if self._settings.aggregate == "node":
            self._world.barrier()  # the others of the node have handed over everything
        self.close()
        self._warn(self._world.gather(self._fault), "the training is not affected")
        if self._memory is not None:
            self._memory.free()
            self._memory = None
        if self._fault and self._settings.required:
            raise OSError(self._fault)

    def last_words(self) -> None:
        """Write what there is before the job is aborted; from any thread, and never for long."""
        writer = self._writer
        if writer is not None:
            with suppress(OSError):
                writer.flush(patience_s=_LAST_PATIENCE_S)

    def close(self, *, patience_s: float = _LAST_PATIENCE_S) -> None:
        """Write what there is and close the file, alone and without asking others; may be called twice."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close(patience_s=patience_s)
        except OSError as error:
            self._fault = _words(error)
        if writer.lost:
            self._fault = f"{self._fault or f'{writer.path} could not be written for a while'}; {writer.lost} rows lost"

    def _open_own(self, folder: Path) -> None:
        try:
            _make(folder)
            path = folder / f"rank_{self._world.rank:05d}.h5"
            self._writer = EventWriter(path, self._header, self._settings.compression)
        except OSError as error:
            self._fault = _words(error)

    def _open_node(self, folder: Path) -> bool:
        """Share memory with the node's ranks and open its file; False on all ranks if a node has too little memory."""
        from mpi4py import MPI

        memory, trouble = None, ""
        try:
            memory = NodeMemory(self._world.comm, ring_bytes())
        except MPI.Exception as error:
            trouble = f"{self._world.host} has too little shared memory for its log: {error}"
        trouble = self._world.first(trouble)
        if trouble or memory is None:
            if memory is not None:
                memory.free()
            if self._world.rank == 0:
                self._say(f'[events].aggregate = "node" is not possible, every rank writes its own: {trouble}')
            return False
        headers = [_header(values) for values in World(memory.comm).collect(asdict(self._header))]
        self._memory, self._leads = memory, memory.own == 0
        try:
            if self._leads:
                _make(folder)
            self._writer = EventWriter.on_node(
                folder / f"node_{headers[0].rank:05d}.h5",
                headers,
                memory.memories,
                own=memory.own,
                compression=self._settings.compression,
                fence=memory.fence,
            )
        except OSError as error:
            self._fault = _words(error)
        if leaders_fault := World(memory.comm).share(self._fault):
            self._writer, self._fault = None, leaders_fault
        return True

    def _describe(self) -> str:
        fault = self._writer.fault if self._writer is not None else None
        return self._fault or ("" if fault is None else _words(fault))

    def _warn(self, faults: Sequence[str], consequence: str) -> None:
        found = Counter(fault for fault in faults if fault)
        if self._world.rank != 0 or not found:
            return
        self._warned = True
        reason, _ = found.most_common(1)[0]
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        self._say(f"the event log of {_count(found.total())} is missing or incomplete, {consequence}: {reason}{others}")

    @staticmethod
    def _say(sentence: str) -> None:
        sys.stderr.write(f"hpcpipe: warning: {sentence}\n")
        sys.stderr.flush()


def _header(values: dict[str, Any]) -> LogHeader:
    return LogHeader(**{**values, "mesh": tuple(values["mesh"]), "coords": tuple(values["coords"])})


def _make(folder: Path) -> None:
    try:
        if not folder.is_dir():  # as a rule rank 0 has made it
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"cannot make the folder {folder} of the event log: {error.strerror}") from error


def _words(error: OSError) -> str:
    """Return what an error says without its number in front."""
    return error.strerror if error.filename is None and error.strerror else str(error)


def _count(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks != 1 else ''}"
