"""From a log to the numbers of a report, some step windows at a time: it puts the parts together.

How they are shown is report.py's; how they are written as JSON, document.py's.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hpcpipe.analyze.accounting import NUM_CLASSES
from hpcpipe.analyze.critical_path import PathEntry, critical_paths
from hpcpipe.analyze.decided import decisions_of, groups_of
from hpcpipe.analyze.describe import describe, placement, read_job
from hpcpipe.analyze.efficiency import StepTimes, efficiency
from hpcpipe.analyze.graph import TaskGraph, build_graph
from hpcpipe.analyze.nodes import Ints, RankPart
from hpcpipe.analyze.replay import ideal_lengths
from hpcpipe.analyze.results import RankReport, Report, StepLengths
from hpcpipe.analyze.shares import Durations, PathShares
from hpcpipe.analyze.stream import Cursor, batches
from hpcpipe.analyze.throughput import flops_per_token, throughput
from hpcpipe.analyze.waits import WaitTable
from hpcpipe.analyze.windows import StepChoice, Windows, make_windows
from hpcpipe.events import RankLog, RunLog
from hpcpipe.plan import USEFUL, Kind, Placement, TimeClass

LISTED_ENTRIES = 20_000
"""A longer critical path is summed up, and only the steps in the middle of the run are listed entry by entry."""

_DISPATCHED = (Kind.F, Kind.B, Kind.W, Kind.RS, Kind.UPDATE, Kind.AG)
_TIMED = (Kind.F, Kind.B, Kind.W, Kind.UPDATE)


@dataclass(slots=True)
class _Sums:
    """What is added up while the windows pass; arrays by step, or by rank and class."""

    ranks: tuple[RankLog, ...]
    windows: Windows
    classes: Ints = field(init=False)
    step_classes: Ints = field(init=False)
    times: StepTimes = field(init=False)
    waits: WaitTable = field(default_factory=WaitTable)
    durations: Durations = field(default_factory=Durations)
    shares: PathShares = field(init=False)
    path: list[PathEntry] = field(default_factory=list)
    dispatched: int = 0

    def __post_init__(self) -> None:
        steps = len(self.windows)
        self.classes = np.zeros((len(self.ranks), NUM_CLASSES), dtype=np.int64)
        self.step_classes = np.zeros((steps, NUM_CLASSES), dtype=np.int64)
        empty = (np.zeros(steps, dtype=np.int64) for _ in range(3))
        useful, most, ideal = empty
        self.times = StepTimes(useful, most, self.windows.lengths, ideal)
        self.shares = PathShares({rank.rank: rank.header.stage for rank in self.ranks})

    def add_rank(self, position: int, part: RankPart, windows: Windows, at: slice) -> None:
        """Add one rank's account of some windows."""
        totals, rows = part.account.totals, part.rows
        self.classes[position] += totals.sum(axis=0)
        self.step_classes[at] += totals
        useful = totals[:, USEFUL].sum(axis=1)
        self.times.useful[at] += useful
        np.maximum(self.times.most_useful[at], useful, out=self.times.most_useful[at])
        self.waits.add(part, windows)
        inside = (rows.t_start >= windows.begin) & (rows.t_start < windows.end)
        self.dispatched += int(np.count_nonzero(inside & _DISPATCHED_TABLE[rows.kind]))
        kinds = rows.kind[part.account.busy.row]
        for kind in _TIMED:
            row = part.account.busy.row[kinds == kind]
            row = row[inside[row]]
            if len(row):
                self.durations.add(part.log.rank, kind, rows.microbatch[row], rows.t_end[row] - rows.t_start[row])

    def add_path(self, path: list[PathEntry], listed: bool) -> None:
        """Add the paths of some windows; keep those that are to be listed."""
        self.shares.add(path)
        if listed:
            self.path += path


_DISPATCHED_TABLE = np.isin(np.arange(256), _DISPATCHED)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some windows of a run: their place among all, every rank's rows and accounts in them, and the linked tasks."""

    windows: Windows
    at: slice
    parts: tuple[RankPart, ...]
    graph: TaskGraph


def analysed(cursors: tuple[Cursor, ...], windows: Windows, placed: Placement) -> Iterator[Batch]:
    """Yield the run some windows at a time, classified and linked."""
    done = 0
    for some in batches(cursors, windows):
        parts = tuple(RankPart.of(cursor, some) for cursor in cursors)
        yield Batch(some, slice(done, done + len(some)), parts, build_graph(parts, some, placed))
        done += len(some)


def summarize(run: RunLog, steps: StepChoice = None, *, peak_tflops: float | None = None) -> Report:
    """Analyse a run.

    Parameters
    ----------
    steps
        First and last step, both included; None on a side takes all there are.
    peak_tflops
        What one rank's device can do at most (TFLOP/s), for the model FLOPs utilisation.

    Raises
    ------
    AnalysisError
        The log holds no such step.
    """
    windows, ranks = make_windows(run, steps)
    cursors = tuple(Cursor(rank, windows) for rank in ranks)
    sums = _Sums(ranks, windows)
    world_ranks = [rank.rank for rank in ranks]
    listed = _Listed(windows)
    for batch in analysed(cursors, windows, placement(ranks[0].header)):
        for position, part in enumerate(batch.parts):
            sums.add_rank(position, part, batch.windows, batch.at)
        sums.times.ideal[batch.at] = ideal_lengths(batch.graph, batch.windows)
        pieces = [part.account.pieces for part in batch.parts]
        listed.add(sums, batch.at, critical_paths(batch.graph, pieces, world_ranks, batch.windows))
    return _report(run, sums, cursors, listed.steps, peak_tflops)


class _Listed:
    """Decides which steps' paths are listed: all if they are short, else as many in the middle as there is room for."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._low, self._high = 0, len(windows)

    def add(self, sums: _Sums, at: slice, path: list[PathEntry]) -> None:
        """Take in the paths of the windows at a place among all."""
        if at.start == 0:
            per_step = max(1, len(path) // (at.stop - at.start))
            room = max(1, LISTED_ENTRIES // per_step)
            if room < self._high:
                self._low = (self._high - room) // 2
                self._high = self._low + room
        low, high = max(self._low, at.start), min(self._high, at.stop)
        if low == at.start and high == at.stop:
            sums.add_path(path, listed=True)
            return
        begin, end = (int(self._windows.edges[min(max(i, at.start), at.stop)]) for i in (low, max(low, high)))
        for entry in path:
            sums.add_path([entry], listed=low < high and begin <= entry.t_start < end)

    @property
    def steps(self) -> tuple[int, int]:
        """First and last step whose path is listed."""
        return int(self._windows.steps[self._low]), int(self._windows.steps[self._high - 1])


def _report(
    run: RunLog, sums: _Sums, cursors: tuple[Cursor, ...], listed: tuple[int, int], peak_tflops: float | None
) -> Report:
    windows, ranks = sums.windows, sums.ranks
    reports = tuple(_rank_report(cursor, sums.classes[position], windows) for position, cursor in enumerate(cursors))
    totals = sums.classes.sum(axis=0)
    classes = {TimeClass(i): int(totals[i]) for i in range(1, NUM_CLASSES)}
    useful = np.array([report.useful_ns for report in reports], dtype=np.int64)
    header = ranks[0].header
    job = read_job(header)
    return Report(
        run=str(run.path),
        job_id=header.job_id,
        description=describe(header),
        world_size=header.world_size,
        mesh=header.mesh,
        steps=(int(windows.steps[0]), int(windows.steps[-1])),
        num_steps=len(windows),
        wall_ns=windows.wall,
        classes=classes,
        ranks=reports,
        bubble_ratio=1.0 - int(useful.sum()) / (windows.wall * len(ranks)),
        efficiency=efficiency(useful, windows.wall, int(sums.times.ideal.sum())),
        step_ns=StepLengths(*(round(float(np.percentile(windows.lengths, q))) for q in (50, 10, 90))),
        critical_path=tuple(sums.path),
        listed_steps=listed,
        path_kinds=sums.shares.kinds,
        path_stages=sums.shares.by_stage,
        path_edges=sums.shares.edges,
        culprits=sums.shares.culprits(sums.durations),
        longest_waits=tuple(sums.waits.longest),
        waited_for=dict(sums.waits.waited_for),
        throughput=throughput(ranks[0], job, windows, peak_tflops=peak_tflops),
        step_numbers=windows.steps,
        step_times=sums.times,
        step_classes=sums.step_classes,
        microbatch_ns=sums.durations.by_microbatch,
        finished=windows.finished,
        dispatch_overhead_ns_per_task=round(classes[TimeClass.RUNTIME] / sums.dispatched) if sums.dispatched else 0,
        gaps=(*run.gaps, *_gaps(run, sums, cursors, job, peak_tflops)),
        decisions=decisions_of(ranks[0], int(windows.steps[0]), int(windows.steps[-1])),
        step_k=groups_of(ranks[0], windows.steps),
    )


def _rank_report(cursor: Cursor, totals: Ints, windows: Windows) -> RankReport:
    rank = cursor.rank
    inside = np.isin(rank.steps.step, windows.steps)
    return RankReport(
        rank=rank.rank,
        stage=rank.header.stage,
        wall_ns=windows.wall,
        classes={TimeClass(i): int(totals[i]) for i in range(1, NUM_CLASSES)},
        peak_in_flight=cursor.flight.peak,
        peak_bytes=int(rank.steps.peak_bytes[inside].max(initial=0)),
    )


def _gaps(
    run: RunLog, sums: _Sums, cursors: tuple[Cursor, ...], job: dict[str, object], peak_tflops: float | None
) -> list[str]:
    windows = sums.windows
    analysed_ranks = {rank.rank for rank in sums.ranks}
    why = "it has finished no step" if windows.finished else "its log has no task"
    gaps = [f"rank {rank.rank}: left out, {why}" for rank in run.ranks if rank.rank not in analysed_ranks]
    if not windows.finished:
        gaps.append(
            "no step was finished by all ranks: what was begun is analysed, up to the last row of any rank; what a "
            "rank did after its own last row is not known and counts as runtime"
        )
    early = sum(cursor.early for cursor in cursors)
    if early:
        worst, known = max(cursor.earliest for cursor in cursors), 2 * max(rank.clock.uncertainty for rank in run.ranks)
        cause = "no more than" if worst <= known else "clocks are off by more than"
        gaps.append(
            f"{early} messages seem to arrive before they were sent, by up to {worst / 1e3:.0f} µs: "
            f"{cause} the uncertainty of two clocks explains ({known / 1e3:.0f} µs)"
        )
    late = [cursor for cursor in cursors if cursor.late]
    if late:
        count = sum(cursor.late for cursor in late)
        gaps.append(f"{count} rows lie in the log so far behind later ones that their steps were counted without them")
    if peak_tflops and flops_per_token(job) is None:
        gaps.append('no MFU: the model FLOPs are known for [model] kind = "gpt" with its sizes only')
    return gaps
