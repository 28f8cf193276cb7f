"""The event rows of one rank, mostly left in its file: any range of any columns is read when it is asked for.

Times come on rank 0's clock; which rows are wanted is the caller's business.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcpipe.events.clock import ClockFit
from hpcpipe.events.opening import LogError, open_file
from hpcpipe.events.schema import KINDS, RANK, RANKS_GROUP
from hpcpipe.events.tables import Column, Events

CHUNK_ROWS = 8192
"""Ranges that begin and end at multiples of it are read fastest: no chunk is unpacked twice."""

_FOREIGN = (KINDS.index("RECV"), KINDS.index("WAIT"))
_SEND = KINDS.index("SEND")
_TIMES = ("t_start", "t_end")
_ATTEMPTS = 8
_PAUSE_S = 0.05
_OPEN_AT_ONCE = 256


class Rows(Protocol):
    """A rank's event rows, wherever they are; times in ns of rank 0's clock."""

    def __len__(self) -> int:
        """Return how many there are."""

    @property
    def all(self) -> Events:
        """Every row with every column."""

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> dict[str, Column]:
        """Return these columns (names as in the file) of rows `start` to `stop`."""

    def held_open(self) -> AbstractContextManager[None]:
        """Keep what the rows are read from open meanwhile, for many reads."""


class MemoryRows:
    """Rows in memory, of a log that no file holds."""

    def __init__(self, events: Events) -> None:
        self.all = events

    def __len__(self) -> int:
        return len(self.all)

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> dict[str, Column]:
        """Return these columns (names as in the file) of rows `start` to `stop`."""
        fields = dict(zip(Events.column_names(), Events.__dataclass_fields__, strict=True))
        return {name: getattr(self.all, fields[name])[start:stop] for name in columns}

    def held_open(self) -> AbstractContextManager[None]:
        """Do nothing: memory is always open."""
        return nullcontext()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank's rows are in an open file: from row `first` on, or among those of other ranks at `scattered`."""

    columns: Mapping[str, h5py.Dataset]
    first: int = 0
    scattered: NDArray[np.int64] | None = None

    def read(self, name: str, start: int, stop: int) -> Column:
        dataset = self.columns[name]
        if self.scattered is None:
            return np.asarray(dataset[self.first + start : self.first + stop])
        rows = self.scattered[start:stop]
        if len(rows) < stop - start:
            raise OSError(f"{dataset.name} holds {len(self.scattered)} rows of the rank, not {stop}")
        return np.asarray(dataset[rows[0] : rows[-1] + 1])[rows - rows[0]] if len(rows) else np.asarray(dataset[:0])


class StoredRows:
    """A rank's rows in its file, `len` of them at the time when the log was opened.

    A file of a node holds rows of several ranks, mixed while it grows and one rank after the other once it is packed;
    a rank's rows have the same order in both, so a file that is finished meanwhile is read on.

    Parameters
    ----------
    group
        Where in the file the columns are.
    fits
        The clocks of all ranks by world rank: `t_ready` of messages is in the sender's clock.
    """

    def __init__(self, path: Path, group: str, count: int, *, rank: int, fits: dict[int, ClockFit]) -> None:
        self._path, self._group, self._count = path, group, count
        self._rank, self._own, self._fits = rank, fits[rank], fits
        self._held: _Place | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def all(self) -> Events:
        """Every row with every column; for a large log prefer `read`."""
        values = self.read(Events.column_names())
        return Events(*(values[name] for name in Events.column_names()))

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> dict[str, Column]:
        """Return these columns (names as in the file) of rows `start` to `stop`.

        Raises
        ------
        LogError
            The file is gone or damaged.
        """
        start, stop, _ = slice(start, stop).indices(self._count)
        stop = max(start, stop)
        wanted = {*columns, "kind", "peer"} if "t_ready" in columns else set(columns)
        for attempt in range(_ATTEMPTS):
            try:
                with self._opened() as place:
                    values = {name: place.read(name, start, stop) for name in wanted}
                break
            except (OSError, RuntimeError, KeyError) as error:
                if attempt + 1 == _ATTEMPTS:
                    raise LogError(f"{self._path}: cannot be read any more ({error})") from error
                sleep(_PAUSE_S)
        for name in _TIMES:
            if name in values:
                values[name] = self._own.correct(values[name])
        if "t_ready" in values:
            values["t_ready"] = self._correct_ready(values)
        return values

    @contextmanager
    def _opened(self) -> Iterator[_Place]:
        if self._held is not None:
            yield self._held
            return
        with open_file(self._path) as file:
            yield self._find(file)

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """Keep the file open meanwhile, for many reads."""
        with open_file(self._path) as file:
            self._held = self._find(file)
            try:
                yield
            finally:
                self._held = None

    def _find(self, file: h5py.File) -> _Place:
        columns = dict(file[self._group].items())
        if RANK.name not in columns:
            return _Place(columns)
        ranks = file[RANKS_GROUP]
        first = int(ranks["events_first"][()][ranks[RANK.name][()] == self._rank][0])
        if first >= 0:
            return _Place(columns, first)
        return _Place(columns, scattered=np.flatnonzero(columns[RANK.name][()] == self._rank))

    def _correct_ready(self, values: dict[str, Column]) -> NDArray[np.int64]:
        """Correct `t_ready`, which of received messages and of waits is in the sender's clock."""
        ready, kind, peer = values["t_ready"], values["kind"], values["peer"]
        corrected = self._own.correct(ready)
        foreign = np.isin(kind, _FOREIGN)
        seen = np.bincount(peer[foreign & (peer >= 0)]) if foreign.any() else ready[:0]
        corrected[foreign & (peer < 0)] = -1
        for number in np.flatnonzero(seen).tolist():
            theirs = foreign & (peer == number)
            corrected[theirs] = self._fits[number].correct(ready[theirs]) if number in self._fits else -1
        corrected[(ready < 0) & (kind != _SEND)] = -1
        return corrected


@contextmanager
def held_open(rows: Iterable[Rows]) -> Iterator[None]:
    """Keep the files of some ranks open, as many as a process may well have open, for many reads."""
    with ExitStack() as stack:
        for each in list(rows)[:_OPEN_AT_ONCE]:
            stack.enter_context(each.held_open())
        yield
