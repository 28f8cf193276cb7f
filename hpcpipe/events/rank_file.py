"""Reads one file, of a rank or of a node: closed, still written, or left by a killed process; never past the flush.

It checks and copies; correcting clocks and merging ranks is the reader's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import TypeVar

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader, read_header
from hpcpipe.events.opening import LogError, open_file, require_stored
from hpcpipe.events.schema import FLUSHED, FORMAT, GROUPS, RANKS, RANKS_GROUP, SCHEMA_VERSION
from hpcpipe.events.tables import Clock, Decisions, Steps, Table

_ATTEMPTS = 8
_PAUSE_S = 0.05

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True)
class RankFile:
    """What a file holds of one rank, times as written, but its events, of which there are `num_events`.

    `complete`: the rank closed its log. `blocked`, `blocked_ns`: how often and how long the training waited for it;
    `lost`: rows that could not be written.
    """

    path: Path
    header: LogHeader
    num_events: int
    steps: Steps
    clock: Clock
    decisions: Decisions
    complete: bool
    blocked: int = 0
    blocked_ns: int = 0
    lost: int = 0


def read_log_file(path: Path) -> list[RankFile]:
    """Read the flushed rows of one file, by rank, but for its events, whose rows are only counted.

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
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # an attribute may be of any type
            if attempt + 1 == _ATTEMPTS:
                raise LogError(f"{path}: damaged, or still being created ({_first_line(error)})") from error
            sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _read(path: Path, file: h5py.File) -> list[RankFile]:
    if file.attrs.get("format") != FORMAT:
        raise LogError(f"{path}: HDF5, but not an event log (its attribute `format` is {file.attrs.get('format')!r})")
    version = str(file.attrs.get("schema_version", "?"))
    known = SCHEMA_VERSION.partition(".")[0]
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) > int(known):
        raise LogError(f"{path}: written in format {version}; this hpcpipe reads up to {known}.x: update hpcpipe")
    complete = bool(file.attrs["complete"])
    header = read_header(file)
    counts = dict(zip(GROUPS, (int(count) for count in file[FLUSHED][()]), strict=False))

    def table(name: str, make: Callable[..., T]) -> T:
        return make(*(_column(file[name][column.name], counts[name], complete) for column in GROUPS[name]))

    whole = RankFile(
        path=path,
        header=header,
        num_events=_require_events(file, counts["events"], complete),
        steps=table("steps", Steps),
        clock=table("clock", Clock),
        decisions=table("decisions", Decisions),
        complete=complete,
    )
    if RANKS_GROUP not in file:  # format 1.0
        return [whole]
    ranks = {column.name: file[RANKS_GROUP][column.name][()] for column in RANKS}
    if file.attrs.get("layout") != "node":
        return [_count(whole, ranks, 0)]
    owners = {name: _column(file[name]["rank"], counts[name], complete) for name in GROUPS}
    parts = [
        replace(
            whole,
            header=_header_of(header, ranks, index),
            num_events=int(np.count_nonzero(owners["events"] == rank)),
            steps=_of_rank(whole.steps, owners["steps"], rank),
            clock=_of_rank(whole.clock, owners["clock"], rank),
            decisions=_of_rank(whole.decisions, owners["decisions"], rank),
            complete=complete and bool(ranks["closed"][index]),
        )
        for index, rank in enumerate(ranks["rank"].tolist())
    ]
    return [_count(part, ranks, index) for index, part in enumerate(parts)]


def _count(file: RankFile, ranks: Mapping[str, np.ndarray], index: int) -> RankFile:
    blocked, blocked_ns, lost = (int(ranks[name][index]) for name in ("blocked", "blocked_ns", "lost"))
    return replace(file, blocked=blocked, blocked_ns=blocked_ns, lost=lost)


def _header_of(header: LogHeader, ranks: Mapping[str, np.ndarray], index: int) -> LogHeader:
    stage, replica, tensor_slice = (int(ranks[name][index]) for name in ("stage", "replica", "slice"))
    return replace(
        header,
        rank=int(ranks["rank"][index]),
        coords=(stage, replica, tensor_slice),
        device=ranks["device"][index].decode(errors="replace"),
    )


def _of_rank(table: T, owners: np.ndarray, rank: int) -> T:
    return table.take(np.flatnonzero(owners == rank))


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
