"""Reads one rank's file: closed, still written, or left by a killed process; never more than was flushed.

It checks and copies; correcting clocks and merging ranks is the reader's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TypeVar

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader, read_header
from hpcpipe.events.opening import LogError, open_file, require_stored
from hpcpipe.events.schema import FLUSHED, FORMAT, GROUPS, SCHEMA_VERSION
from hpcpipe.events.tables import Clock, Decisions, Steps, Table

_ATTEMPTS = 8
_PAUSE_S = 0.05

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one file holds, times as written, but its events, of which there are `num_events`.

    `complete`: its writer closed it.
    """

    path: Path
    header: LogHeader
    num_events: int
    steps: Steps
    clock: Clock
    decisions: Decisions
    complete: bool


def read_rank_file(path: Path) -> RankFile:
    """Read the flushed rows of one file, but for its events, whose rows are only counted.

    A file that is written at this moment may change under the reader; it is then read again.

    Raises
    ------
    LogError
        It is no event log, of a newer format, or damaged.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with open_file(path) as file:
                return _read(path, file)
        except (OSError, RuntimeError, KeyError) as error:
            if attempt + 1 == _ATTEMPTS:
                raise LogError(f"{path}: damaged, or still being created ({_first_line(error)})") from error
            sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _read(path: Path, file: h5py.File) -> RankFile:
    if file.attrs.get("format") != FORMAT:
        raise LogError(f"{path}: HDF5, but not an event log (its attribute `format` is {file.attrs.get('format')!r})")
    version = str(file.attrs.get("schema_version", "?"))
    known = SCHEMA_VERSION.partition(".")[0]
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) > int(known):
        raise LogError(f"{path}: written in format {version}; this hpcpipe reads up to {known}.x: update hpcpipe")
    complete = bool(file.attrs["complete"])
    counts = dict(zip(GROUPS, (int(count) for count in file[FLUSHED][()]), strict=False))

    def table(name: str, make: Callable[..., T]) -> T:
        return make(*(_column(file[name][column.name], counts[name], complete) for column in GROUPS[name]))

    return RankFile(
        path=path,
        header=read_header(file),
        num_events=_require_events(file, counts["events"], complete),
        steps=table("steps", Steps),
        clock=table("clock", Clock),
        decisions=table("decisions", Decisions),
        complete=complete,
    )


def _require_events(file: h5py.File, rows: int, complete: bool) -> int:
    for column in GROUPS["events"]:
        _require(file["events"][column.name], rows, complete)
    return rows


def _column(dataset: h5py.Dataset, rows: int, complete: bool) -> np.ndarray:
    _require(dataset, rows, complete)
    return np.asarray(dataset[:rows])


def _require(dataset: h5py.Dataset, rows: int, complete: bool) -> None:
    if dataset.shape[0] < rows:
        raise OSError(f"{dataset.name} holds {dataset.shape[0]} rows of {rows}")
    if not complete:
        require_stored(dataset, rows)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
