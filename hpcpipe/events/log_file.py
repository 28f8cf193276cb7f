"""One HDF5 log that grows: made, appended to in chunks, finished; a fault of HDF5 becomes an OSError in plain words.

It knows the file and its layout, not where rows come from nor which thread it runs in.
"""

import errno
import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np

from hpcpipe.events.clock import fit_clock
from hpcpipe.events.header import LogHeader
from hpcpipe.events.layout import COMPRESSIONS, LIBVER, Appender, create_layout, pack, ranks_table, write_totals
from hpcpipe.events.schema import FLUSHED, GROUPS, RANKS, RANKS_GROUP, stored_columns

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, 524)
"""What flock says on Lustre without `-o flock`, GPFS and NFS; 524 is ENOTSUPP, which some of them leak."""
_LOCK_WORDS = re.compile(r"unable to (?:un)?lock file.*?errno = (\d+)", re.DOTALL)
_ERRNO_WORDS = re.compile(r"errno = (\d+)")
_VARIABLE = "HDF5_USE_FILE_LOCKING"

Rows = Mapping[str, np.ndarray]

_CACHE_BYTES = 1 << 18
"""Memory for the chunks of a column: the one that is being filled; those before it are not read again."""


class LogFile:
    """The log of one rank, or with `node` of several.

    Raises
    ------
    OSError
        The file exists or cannot be made.
    ValueError
        An unknown compression.
    """

    def __init__(self, path: Path, headers: Sequence[LogHeader], compression: str, *, node: bool) -> None:
        if compression not in COMPRESSIONS:
            raise ValueError(f"compression {compression!r} of the event log: choose one of {', '.join(COMPRESSIONS)}")
        self.path = path
        self._headers = list(headers)
        self._compression = compression
        self._node = node
        self._fault: OSError | None = None
        self._columns = {name: stored_columns(name, node=node) for name in GROUPS}
        self._flushed = np.zeros(len(GROUPS), dtype="<i8")
        self._clocks: list[list[np.ndarray]] = [[] for _ in headers]
        self._table = ranks_table(headers)
        with self._faults("create"):
            self._file = create_file(path, "x")
            self._inode = os.fstat(self._file.id.get_vfd_handle()).st_ino
            create_layout(self._file, self._headers, node=node)
            self._file.swmr_mode = True
        self._appenders = {name: Appender(self._file[name], columns) for name, columns in self._columns.items()}

    def append(self, parts: Sequence[Rows], counters: Sequence[Mapping[str, int]]) -> float:
        """Write the rows of each rank, then the counters, then the row counts that a reader may trust.

        Returns for how many seconds other threads could not run.

        Raises
        ------
        OSError
            It cannot be written. The same rows may be given again, alone or with more.
        """
        merged = {name: self._merge(name, parts) for name in GROUPS}
        try:
            with self._faults("write"):
                held = self._append(merged, counters)
        except OSError as error:
            self._fault = error
            raise
        self._fault = None
        for clocks, rows in zip(self._clocks, parts, strict=True):
            clocks.append(rows["clock"])
        return held

    def _append(self, merged: Mapping[str, Rows], counters: Sequence[Mapping[str, int]]) -> float:
        counts = self._flushed.copy()
        held = 0.0
        for index, (name, rows) in enumerate(merged.items()):
            held += self._appenders[name].append(int(self._flushed[index]), rows)
            counts[index] += len(next(iter(rows.values())))
        self._count(counters)
        if np.any(counts != self._flushed):
            self._file[FLUSHED][...] = counts
            self._file[FLUSHED].flush()
        self._flushed = counts
        return held

    def vanished(self) -> OSError | None:
        """Return a fault if the path no longer names this file: removed, or replaced by somebody."""
        try:
            if self.path.stat().st_ino == self._inode:
                return None
        except OSError:
            pass
        words = f"the event log {self.path} has vanished while it was written; it is made anew at the end if it can be"
        return OSError(errno.ENOENT, words)

    def finish(self, closed: Sequence[bool]) -> None:
        """Put the packed file, marked complete, in the log's place.

        Raises
        ------
        OSError
            It cannot be packed. What was flushed stays readable, and is marked complete where that is possible.
        """
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with self._faults("write"):
                if self._fault is not None:
                    raise self._fault
                self._conclude(closed)
            with self._faults("pack"):
                self._pack(partial)
            with self._faults("close"):
                self._file.close()
                partial.replace(self.path)
        except OSError:
            if self._fault is None:
                with suppress(OSError, RuntimeError, ValueError):
                    self._file.close()
            abandon(self._file)
            with suppress(OSError, RuntimeError, KeyError), h5py.File(self.path, "r+", locking=False) as file:
                write_totals(file)
                file.attrs["complete"] = 1
            raise
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def _pack(self, partial: Path) -> None:
        target = create_file(partial, "w")
        try:
            pack(self._file, target, self._headers, node=self._node, compression=self._compression)
            write_totals(target)
            target.close()
        except BaseException:
            abandon(target)
            raise

    def _merge(self, name: str, parts: Sequence[Rows]) -> Rows:
        if not self._node:
            return {column.name: parts[0][name][column.name] for column in self._columns[name]}
        lengths = [len(part[name]) for part in parts]
        ranks = np.array([header.rank for header in self._headers], dtype="<i4")
        merged = {"rank": np.repeat(ranks, lengths)}
        for column in self._columns[name][1:]:
            merged[column.name] = np.concatenate([part[name][column.name] for part in parts])
        return merged

    def _count(self, counters: Sequence[Mapping[str, int]]) -> None:
        for name in counters[0]:
            values = np.array([each[name] for each in counters], dtype=self._table.dtype[name])
            if np.any(values != self._table[name]):
                self._file[RANKS_GROUP][name][...] = values
                self._file[RANKS_GROUP][name].flush()
                self._table[name] = values

    def _conclude(self, closed: Sequence[bool]) -> None:
        """Write the last columns of `ranks`: who has closed, and the clocks."""
        table = self._table
        table["closed"] = closed
        for row, clocks in zip(table, self._clocks, strict=True):
            if not clocks:
                continue
            samples = np.concatenate(clocks)
            fit = fit_clock(samples["t_local"], samples["offset"], samples["round_trip"])
            row["clock_reference"], row["clock_offset"] = fit.reference, fit.offset
            row["clock_drift"], row["clock_uncertainty"] = fit.drift, fit.uncertainty
        for column in RANKS:
            if column.name == "closed" or column.name.startswith("clock_"):
                self._file[RANKS_GROUP][column.name][...] = table[column.name]

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:  # HDF5 reports some failed writes as the latter two
            code = _errno(error)
            if isinstance(error, FileExistsError):
                words = "it exists already; every start of a run writes a file of its own"
            elif (number := lock_trouble(error)) is not None:
                words = f"the file system cannot lock files (errno {number}): export {_VARIABLE}=FALSE"
            else:
                words = os.strerror(code) if code else _first_line(error)
            sentence = f"cannot {doing} the event log {self.path}: {words}"
            raise (OSError(code, sentence) if code else OSError(sentence)) from error


def create_file(path: Path, mode: str) -> h5py.File:
    """Make a file; where the file system has no locks, without them: nobody else writes it.

    Raises
    ------
    OSError
        It cannot be made, or HDF5_USE_FILE_LOCKING insists on locks.
    """
    try:
        return h5py.File(path, mode, libver=LIBVER, locking="best-effort", rdcc_nbytes=_CACHE_BYTES)
    except OSError as error:
        if lock_trouble(error) is None:
            raise
        with suppress(OSError):
            path.unlink()  # HDF5 makes the file before it asks for the lock
        return h5py.File(path, mode, libver=LIBVER, locking=False, rdcc_nbytes=_CACHE_BYTES)


def abandon(file: h5py.File) -> None:
    """Close a file that cannot be written any more, without a word and as it is on disk.

    HDF5 keeps what it could not write, tries again whenever it can, and may crash over it when the process ends. So it
    is made to write to a file in memory that is nobody's.
    """
    if not file:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)  # it holds for files in memory too
    with suppress(OSError, RuntimeError, ValueError):
        descriptor, instead = file.id.get_vfd_handle(), os.memfd_create("hpcpipe-abandoned")
        os.dup2(instead, descriptor)
        os.close(instead)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        file.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lock_trouble(error: BaseException) -> int | None:
    """Return the errno with which a file system has refused to lock a file at all, None if it is another trouble."""
    found = _LOCK_WORDS.search(str(error))
    number = int(found[1]) if found else None
    return number if number in _NO_LOCKS else None


def _errno(error: Exception) -> int | None:
    """Return the system's reason, which HDF5 often has only in its text."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    found = _ERRNO_WORDS.search(str(error))
    return int(found[1]) if found else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
