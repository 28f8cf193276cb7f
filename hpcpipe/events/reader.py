"""From a run's files to one log: all ranks, on rank 0's clock, and what is missing of it.

It says what was recorded; what the times mean is the analysis's.
"""

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcpipe.events.clock import ClockFit, fit_clock
from hpcpipe.events.header import LogHeader
from hpcpipe.events.opening import LogError
from hpcpipe.events.rank_file import RankFile, read_log_file
from hpcpipe.events.rows import Rows, StoredRows
from hpcpipe.events.tables import Decisions, Events, Steps

_NAMED_GAPS = 8
_NAMES = ("rank_*.h5", "node_*.h5")


@dataclass(frozen=True, slots=True)
class RankLog:
    """One rank's log. Times are ns of rank 0's clock; -1 where there is none or the sender's clock is not known.

    The events stay in the file until they are read: all of them with `events`, a range of them through `rows`.
    `blocked`, `blocked_ns`: how often and how long the training waited for a full ring; `lost`: rows that are missing.
    """

    header: LogHeader
    rows: Rows
    steps: Steps
    decisions: Decisions
    clock: ClockFit
    complete: bool
    blocked: int = 0
    blocked_ns: int = 0
    lost: int = 0

    @property
    def rank(self) -> int:
        """World rank."""
        return self.header.rank

    @property
    def events(self) -> Events:
        """Every row, read from the file each time it is asked for."""
        return self.rows.all


@dataclass(frozen=True, slots=True)
class RunLog:
    """A run: its ranks in order, and sentences about what is missing."""

    path: Path
    ranks: tuple[RankLog, ...]
    gaps: tuple[str, ...]

    @property
    def header(self) -> LogHeader:
        """The header of the first rank; what is the same on all ranks may be read from it."""
        return self.ranks[0].header

    def clock_fit(self, rank: int) -> ClockFit:
        """Return how the clock of a world rank ran against rank 0's: offset, drift and their uncertainty.

        Raises
        ------
        KeyError
            There is no log of this rank.
        """
        for log in self.ranks:
            if log.rank == rank:
                return log.clock
        raise KeyError(rank)


def open_run(path: Path | str) -> RunLog:
    """Read the logs of a run, also while it is running.

    Parameters
    ----------
    path
        A run directory, its `events` directory, one rank's file, or a directory of runs with a `latest`.

    Raises
    ------
    LogError
        There is no log, or none that can be read.
    """
    path = Path(path)
    paths = find_files(path)
    files: list[RankFile] = []
    faults: list[str] = []
    for each in paths:
        try:
            files += read_log_file(each)
        except LogError as error:
            faults.append(str(error))
    if not files:
        raise LogError("\n".join(faults))
    files.sort(key=lambda file: file.header.rank)
    _check_one_run(files)
    fits = {file.header.rank: fit_clock(file.clock.t_local, file.clock.offset, file.clock.round_trip) for file in files}
    ranks = tuple(_correct(file, fits) for file in files)
    return RunLog(path, ranks, (*(f"left out: {fault}" for fault in faults), *_gaps(files)))


def open_rank(path: Path | str, rank: int) -> RankLog:
    """Read the log of one rank of a run, and no other file where each rank has its own.

    Raises
    ------
    LogError
        There is none, or it cannot be read.
    """
    path = Path(path)
    own = [file for file in find_files(path) if file.name == f"rank_{rank:05d}.h5"]
    for log in open_run(own[0] if own else path).ranks:
        if log.rank == rank:
            return log
    raise LogError(f"{path}: there is no log of rank {rank}")


def find_files(path: Path) -> list[Path]:
    """Return the files of the ranks or nodes under `path`.

    Raises
    ------
    LogError
        There are none, or none that this user may read.
    """
    for each in (path, path / "events"):
        try:
            if each.is_dir():
                os.scandir(each).close()  # globbing would find nothing and not say why
        except OSError as error:
            raise LogError(f"{each}: cannot be read: {error.strerror}") from error
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise LogError(f"{path}: there is no such run" + _nearby(path))
    for folder in (path / "events", path, path / "latest" / "events"):
        found = sorted(path for name in _NAMES for path in folder.glob(name)) if folder.is_dir() else []
        if found:
            return found
    expected = "events/rank_00000.h5, … or events/node_00000.h5, …"
    raise LogError(
        f"{path}: no event log here: expected {expected} ([events].on = false in the job?); name a run directory, "
        "runs/NAME/ID or runs/NAME/latest"
    )


def _nearby(path: Path) -> str:
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    names = sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    return (
        f"; {folder} holds {', '.join(names[:6])}{', …' if len(names) > 6 else ''}"
        if names and path.parent == folder
        else ""
    )


def _check_one_run(files: list[RankFile]) -> None:
    first = files[0]
    same = ("job_sha256", "world_size", "mesh", "job_id", "restart")
    for file in files[1:]:
        differing = [name for name in same if getattr(file.header, name) != getattr(first.header, name)]
        if differing:
            name = differing[0]
            ours, theirs = getattr(first.header, name), getattr(file.header, name)
            raise LogError(
                f"{file.path} belongs to another run than {first.path.name}: {name} is {theirs!r}, not {ours!r}"
            )
    counted = Counter(file.header.rank for file in files)
    for rank, count in counted.items():
        if count > 1:
            names = ", ".join(file.path.name for file in files if file.header.rank == rank)
            raise LogError(f"{first.path.parent}: {count} files of rank {rank} ({names}): keep one")


def _correct(file: RankFile, fits: dict[int, ClockFit]) -> RankLog:
    own, steps = fits[file.header.rank], file.steps
    return RankLog(
        header=file.header,
        rows=StoredRows(file.path, "events", file.num_events, rank=file.header.rank, fits=fits),
        steps=replace(
            steps,
            t_begin=own.correct(steps.t_begin),
            t_end=own.correct(steps.t_end),
            hint=np.array([text.decode(errors="replace") for text in steps.hint.tolist()], dtype=object),
        ),
        decisions=file.decisions,
        clock=own,
        complete=file.complete,
        blocked=file.blocked,
        blocked_ns=file.blocked_ns,
        lost=file.lost,
    )


def _gaps(files: list[RankFile]) -> list[str]:
    header = files[0].header
    gaps = []
    missing = sorted(set(range(header.world_size)) - {file.header.rank for file in files})
    if missing:
        gaps.append(f"{_name_ranks(missing)} of {header.world_size} missing: no log; waits for them cannot be split")
    unsynced = [file.header.rank for file in files if file.header.rank and not len(file.clock)]
    if unsynced:
        gaps.append(f"{_name_ranks(unsynced)}: no clock samples, taken as rank 0's clock")
    last = max((int(file.steps.step.max()) for file in files if len(file.steps)), default=-1)
    open_files = [file for file in files if not file.complete]
    for file in open_files[:_NAMED_GAPS]:
        own = int(file.steps.step.max()) if len(file.steps) else None
        where = "before its first step" if own is None else f"at step {own}"
        behind = f", others reach {last}" if own is not None and own < last else ""
        gaps.append(f"rank {file.header.rank}: log ends {where}{behind} and was not closed (still running, or killed?)")
    if len(open_files) > _NAMED_GAPS:
        gaps.append(f"{len(open_files) - _NAMED_GAPS} more ranks: logs not closed")
    closed_short = [
        file.header.rank for file in files if file.complete and len(file.steps) and int(file.steps.step.max()) < last
    ]
    if closed_short:
        gaps.append(f"{_name_ranks(closed_short)}: log ends before step {last}, which others reach")
    empty = [file.header.rank for file in files if file.complete and not len(file.steps)]
    if empty:
        gaps.append(f"{_name_ranks(empty)}: no finished step in the log")
    for file in files:
        if file.lost:
            gaps.append(f"rank {file.header.rank}: {file.lost} rows are missing, the log could not be written then")
    blocked = [file for file in files if file.blocked]
    if blocked:
        ranks, times = _name_ranks([file.header.rank for file in blocked]), sum(file.blocked for file in blocked)
        longest = max(file.blocked_ns for file in blocked) / 1e6
        gaps.append(
            f"{ranks}: waited {times} time{'s' if times > 1 else ''} for the event log, a rank up to {longest:.1f} ms "
            "together; it counts as runtime"
        )
    return gaps


def _name_ranks(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 1-3, 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {words}"
