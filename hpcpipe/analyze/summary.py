"""From a log to the numbers of a report: classes, efficiencies, critical path, memory, and what is missing.

It puts the parts together; how they are shown is report.py's and gantt.py's.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.accounting import NUM_CLASSES, account
from hpcpipe.analyze.critical_path import PathEntry, critical_path
from hpcpipe.analyze.describe import Description, describe
from hpcpipe.analyze.efficiency import Efficiency, efficiency, ideal_wall
from hpcpipe.analyze.graph import build_graph
from hpcpipe.analyze.windows import Windows, make_windows
from hpcpipe.events import RankLog, RunLog
from hpcpipe.plan import USEFUL, Kind, TimeClass

FORMAT = "hpcpipe-analysis"
SCHEMA_VERSION = "1.0.0"

_DISPATCHED = (Kind.F, Kind.B, Kind.W, Kind.RS, Kind.UPDATE, Kind.AG)


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank: its classes sum to `wall_ns`. `peak_in_flight` counts forwards begun whose backward has not ended."""

    rank: int
    stage: int
    wall_ns: int
    classes: dict[TimeClass, int]
    peak_in_flight: int
    peak_bytes: int

    @property
    def useful_ns(self) -> int:
        """Time of useful work."""
        return sum(self.classes[each] for each in USEFUL)


@dataclass(frozen=True, slots=True)
class StepLengths:
    """Median, 10th and 90th percentile of the steps' lengths in ns."""

    median: int
    p10: int
    p90: int


@dataclass(frozen=True, slots=True)
class Report:
    """A run's analysis. `wall_ns` is the time that passed, the same for every rank; `classes` are sums over ranks."""

    run: str
    job_id: str
    description: Description
    world_size: int
    mesh: tuple[int, int, int]
    steps: tuple[int, int]
    num_steps: int
    wall_ns: int
    classes: dict[TimeClass, int]
    ranks: tuple[RankReport, ...]
    bubble_ratio: float
    efficiency: Efficiency
    step_ns: StepLengths
    critical_path: tuple[PathEntry, ...]
    dispatch_overhead_ns_per_task: int
    gaps: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `analyze --json`."""
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "run": self.run,
            "job_id": self.job_id,
            **asdict(self.description),
            "world_size": self.world_size,
            "mesh": list(self.mesh),
            "steps": list(self.steps),
            "wall_ns": self.wall_ns,
            "classes": _named(self.classes),
            "ranks": [_rank_json(rank) for rank in self.ranks],
            "bubble_ratio": self.bubble_ratio,
            "efficiency": asdict(self.efficiency),
            "step_ns": asdict(self.step_ns),
            "critical_path": [asdict(entry) for entry in self.critical_path],
            "dispatch_overhead_ns_per_task": self.dispatch_overhead_ns_per_task,
            "gaps": list(self.gaps),
        }


def summarize(run: RunLog, steps: tuple[int | None, int | None] | None = None) -> Report:
    """Analyse a run.

    Parameters
    ----------
    steps
        First and last step, both included; None on a side takes all there are.

    Raises
    ------
    AnalysisError
        The log holds no such step.
    """
    windows, ranks = make_windows(run, steps)
    accounts = tuple(account(rank, windows) for rank in ranks)
    graph = build_graph(ranks, windows)
    reports = tuple(
        _rank_report(rank, each.totals.sum(axis=0), windows) for rank, each in zip(ranks, accounts, strict=True)
    )
    classes = {each: sum(report.classes[each] for report in reports) for each in reports[0].classes}
    useful = np.array([report.useful_ns for report in reports], dtype=np.int64)
    dispatched = sum(_num_dispatched(rank, windows) for rank in ranks)
    header = ranks[0].header
    return Report(
        run=str(run.path),
        job_id=header.job_id,
        description=describe(header),
        world_size=header.world_size,
        mesh=header.mesh,
        steps=(int(windows.steps[0]), int(windows.steps[-1])),
        num_steps=len(windows.steps),
        wall_ns=windows.wall,
        classes=classes,
        ranks=reports,
        bubble_ratio=1.0 - int(useful.sum()) / (windows.wall * len(ranks)),
        efficiency=efficiency(useful, windows.wall, ideal_wall(graph, windows)),
        step_ns=StepLengths(*(round(float(np.percentile(windows.lengths, q))) for q in (50, 10, 90))),
        critical_path=tuple(critical_path(graph, ranks, accounts, windows)),
        dispatch_overhead_ns_per_task=round(classes[TimeClass.RUNTIME] / dispatched) if dispatched else 0,
        gaps=(*run.gaps, *_gaps(run, ranks)),
    )


def _rank_report(rank: RankLog, totals: NDArray[np.int64], windows: Windows) -> RankReport:
    inside = np.isin(rank.steps.step, windows.steps)
    return RankReport(
        rank=rank.rank,
        stage=rank.header.stage,
        wall_ns=windows.wall,
        classes={TimeClass(i): int(totals[i]) for i in range(1, NUM_CLASSES)},
        peak_in_flight=peak_in_flight(rank, windows),
        peak_bytes=int(rank.steps.peak_bytes[inside].max()),
    )


def peak_in_flight(rank: RankLog, windows: Windows) -> int:
    """Return the most forwards begun whose backward had not ended, at any time of the windows' steps."""
    events = rank.events
    chosen = np.isin(events.step, windows.steps)
    begun = events.t_start[chosen & (events.kind == Kind.F)]
    ended = events.t_end[chosen & (events.kind == Kind.B)]
    changes = np.concatenate([np.full(len(begun), 1), np.full(len(ended), -1)])
    order = np.lexsort((changes, np.concatenate([begun, ended])))  # at one instant, first what ends
    return max(0, int(np.max(np.cumsum(changes[order]), initial=0)))


def _num_dispatched(rank: RankLog, windows: Windows) -> int:
    events = rank.events
    inside = (events.t_start >= windows.begin) & (events.t_start < windows.end)
    return int(np.count_nonzero(inside & np.isin(events.kind, _DISPATCHED)))


def _gaps(run: RunLog, ranks: tuple[RankLog, ...]) -> list[str]:
    analysed = {rank.rank for rank in ranks}
    gaps = [f"rank {rank.rank}: left out, it has finished no step" for rank in run.ranks if rank.rank not in analysed]
    early, worst = 0, 0
    for rank in ranks:
        rows = rank.events.take((rank.events.kind == Kind.RECV) & (rank.events.t_ready >= 0))
        ahead = rows.t_ready - rows.t_end
        early += int(np.count_nonzero(ahead > 0))
        worst = max(worst, int(ahead.max(initial=0)))
    if early:
        gaps.append(
            f"{early} messages seem to arrive before they were sent, by up to {worst / 1e3:.0f} µs: clocks are off"
        )
    return gaps


def _named(classes: dict[TimeClass, int]) -> dict[str, int]:
    return {each.name.lower(): ns for each, ns in classes.items()}


def _rank_json(rank: RankReport) -> dict[str, Any]:
    values = {field.name: getattr(rank, field.name) for field in fields(rank)}
    return {**values, "classes": _named(rank.classes)}
