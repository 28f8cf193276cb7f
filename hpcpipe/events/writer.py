"""One rank's event log: events are kept in memory as they happen and written at each flush.

It knows the format and the file, not the engine; recording an event does no input or output until memory is full.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader
from hpcpipe.events.layout import COMPRESSIONS, LIBVER, Appender, create_layout, pack
from hpcpipe.events.schema import CLOCK, DECISIONS, EVENTS, FLUSHED, GROUPS, STEPS, row_dtype, row_struct

_ROW = row_struct(EVENTS)
_FIRST_ROWS = 1 << 12
_MOST_ROWS = 1 << 20
_MOST_COUNT = 2**15 - 1


class EventWriter:
    """Writes the log of one rank.

    The file can be read while it is written and after its writer was killed, up to the last flush. `close` packs it.

    Parameters
    ----------
    path
        A file that does not exist yet.
    compression
        "gzip", "lzf" or "none", for the packed file.

    Raises
    ------
    OSError
        The file exists or cannot be written.
    ValueError
        An unknown compression.
    """

    def __init__(self, path: Path | str, header: LogHeader, compression: str = "gzip") -> None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} of the event log: choose one of {', '.join(COMPRESSIONS)}")
        self.path = Path(path)
        self._header = header
        self._compression = compression
        self._file: h5py.File | None = None
        with self._faults("create"):
            self._file = h5py.File(self.path, "x", libver=LIBVER, locking="best-effort")
            create_layout(self._file, header)
            self._file.swmr_mode = True
            self._appenders = [Appender(self._file[name], columns) for name, columns in GROUPS.items()]
        self._buffer = bytearray(_FIRST_ROWS * _ROW.size)
        self._at = 0
        self._end = len(self._buffer)
        self._pack = _ROW.pack_into
        self._small: dict[str, list[tuple[Any, ...]]] = {"steps": [], "clock": [], "decisions": []}
        self._flushed = np.zeros(len(GROUPS), dtype="<i8")

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Keep one event (columns: schema.py; times in ns). Writes only when a million events wait for a flush."""
        at = self._at
        if at == self._end:
            at = self._make_room()
        if ready_count > _MOST_COUNT:  # noqa: PLR1730 - min() is a call on the hot path
            ready_count = _MOST_COUNT
        self._pack(
            self._buffer, at, step, microbatch, kind, chunk, t_ready, t_start, t_end,
            wait_class, peer, nbytes, rank_in_hint, ready_count, flags,
        )  # fmt: skip
        self._at = at + _ROW.size

    def step(
        self,
        step: int,
        t_begin: int,
        t_end: int,
        loss: float = nan,
        grad_norm: float = nan,
        tokens: int = 0,
        hint: str = "bf",
        k: int = 0,
        bucket_bytes: int = 0,
        peak_bytes: int = 0,
    ) -> None:
        """Keep the row of a finished step."""
        row = (step, t_begin, t_end, loss, grad_norm, tokens, _fit(hint, 64), k, bucket_bytes, peak_bytes)
        self._small["steps"].append(row)

    def clock(self, t_local: int, offset: int, round_trip: int) -> None:
        """Keep a comparison with rank 0's clock; `offset` is this rank's clock minus rank 0's."""
        self._small["clock"].append((t_local, offset, round_trip))

    def decision(self, step: int, what: str, why: str) -> None:
        """Keep what was decided for the steps from `step` on; long words are cut to the columns' lengths."""
        self._small["decisions"].append((step, _fit(what, 64), _fit(why, 256)))

    def flush(self) -> None:
        """Write everything kept so far and then the row counts that a reader may trust.

        Raises
        ------
        OSError
            It cannot be written. Nothing is lost: the next flush tries the same rows again.
        """
        if self._file is None:
            return
        pending = {
            "events": np.frombuffer(bytes(memoryview(self._buffer)[: self._at]), dtype=row_dtype(EVENTS)),
            "steps": np.array(self._small["steps"], dtype=row_dtype(STEPS)),
            "clock": np.array(self._small["clock"], dtype=row_dtype(CLOCK)),
            "decisions": np.array(self._small["decisions"], dtype=row_dtype(DECISIONS)),
        }
        with self._faults("write"):
            for appender, at, group in zip(self._appenders, self._flushed, pending.values(), strict=True):
                appender.append(int(at), group)
            counts = self._flushed + [len(rows) for rows in pending.values()]
            self._file[FLUSHED][...] = counts
            self._file[FLUSHED].flush()
        self._flushed = counts
        self._at = 0
        for rows in self._small.values():
            rows.clear()

    def close(self) -> None:
        """Flush, then put the packed file, marked complete, in the log's place. May be called twice.

        Raises
        ------
        OSError
            The file cannot be written or packed; what was flushed stays readable.
        """
        if self._file is None:
            return
        try:
            self.flush()
        finally:
            file, self._file = self._file, None
            with self._faults("close"):
                file.close()
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with self._faults("pack"):
                with h5py.File(self.path, "r", locking=False) as source:
                    pack(source, partial, self._header, compression=self._compression)
                partial.replace(self.path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_room(self) -> int:
        """Double the memory, or flush when it has grown to its limit; return where the next row goes."""
        if self._end < _MOST_ROWS * _ROW.size:
            self._buffer.extend(bytes(self._end))
            self._end = len(self._buffer)
        else:
            self.flush()
        return self._at

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:  # HDF5 reports some failed writes as the latter two
            if isinstance(error, FileExistsError):
                words = "it exists already; every start of a run writes a file of its own"
            else:
                words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else _first_line(error)
            sentence = f"cannot {doing} the event log {self.path}: {words}"
            number = error.errno if isinstance(error, OSError) else None
            raise (OSError(number, sentence) if number else OSError(sentence)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _fit(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()
