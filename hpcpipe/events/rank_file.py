"""Reads one rank's file: closed, still written, or left by a killed process; never more than was flushed.

It opens and checks; correcting clocks and merging ranks is the reader's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TypeVar

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader, read_header
from hpcpipe.events.schema import FLUSHED, FORMAT, GROUPS, SCHEMA_VERSION
from hpcpipe.events.tables import Clock, Decisions, Events, Steps, Table

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_ATTEMPTS = 8
_PAUSE_S = 0.05


T = TypeVar("T", bound=Table)


class LogError(Exception):
    """A log that cannot be read; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one file holds, times as written. `complete`: its writer closed it."""

    path: Path
    header: LogHeader
    events: Events
    steps: Steps
    clock: Clock
    decisions: Decisions
    complete: bool


def read_rank_file(path: Path) -> RankFile:
    """Read the flushed rows of one file.

    A file that is written at this moment may change under the reader; it is then read again.

    Raises
    ------
    LogError
        It is no event log, of a newer format, or damaged.
    """
    check_signature(path)
    for attempt in range(_ATTEMPTS):
        try:
            with h5py.File(path, "r", swmr=True, locking=False) as file:
                return _read(path, file)
        except (OSError, RuntimeError, KeyError) as error:
            if attempt + 1 == _ATTEMPTS:
                raise LogError(f"{path}: damaged, or still being created ({_first_line(error)})") from error
            sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def check_signature(path: Path) -> None:
    """Raise LogError if the file is missing, cannot be opened or is not HDF5."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_SIGNATURE))
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    if start != _SIGNATURE:
        raise LogError(f"{path}: " + ("not an HDF5 file" if start else "an empty file"))


def _read(path: Path, file: h5py.File) -> RankFile:
    if file.attrs.get("format") != FORMAT:
        raise LogError(f"{path}: HDF5, but not an event log (its attribute `format` is {file.attrs.get('format')!r})")
    version = str(file.attrs.get("schema_version", "?"))
    known = SCHEMA_VERSION.partition(".")[0]
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) > int(known):
        raise LogError(f"{path}: written in format {version}; this hpcpipe reads up to {known}.x: update hpcpipe")
    counts = dict(zip(GROUPS, (int(count) for count in file[FLUSHED][()]), strict=False))
    return RankFile(
        path=path,
        header=read_header(file),
        events=_table(file, "events", Events, counts),
        steps=_table(file, "steps", Steps, counts),
        clock=_table(file, "clock", Clock, counts),
        decisions=_table(file, "decisions", Decisions, counts),
        complete=bool(file.attrs["complete"]),
    )


def _table(file: h5py.File, name: str, make: Callable[..., T], counts: dict[str, int]) -> T:
    count = counts.get(name, 0)
    columns = []
    for column in GROUPS[name]:
        dataset = file[name][column.name]
        if dataset.shape[0] < count:
            raise OSError(f"{name}/{column.name} holds {dataset.shape[0]} rows of {count}")
        values = np.asarray(dataset[:count])
        columns.append(values)
    return make(*columns)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
