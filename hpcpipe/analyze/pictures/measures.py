"""What the pictures count in the rows of a log: message latencies, sizes of ready-sets, durations of tasks.

Rows are read a range at a time into counts of fixed size, so a log of any length needs little memory. It draws nothing.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.stream import row_ranges
from hpcpipe.analyze.windows import StepChoice, Windows, make_windows
from hpcpipe.events import RankLog, RunLog, held_open
from hpcpipe.plan import Kind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

PER_DECADE = 24
LEAST_NS, MOST_NS = 100.0, 1e12
BINS = int(PER_DECADE * np.log10(MOST_NS / LEAST_NS)) + 2
MOMENTS = 360
"""Into so many stretches the time is cut in which the mean size of the ready-sets is taken."""
TIMED = (Kind.F, Kind.B, Kind.W, Kind.UPDATE, Kind.RS, Kind.AG)
CHOSEN = (Kind.F, Kind.B, Kind.W)
_COLUMNS = ("step", "kind", "t_ready", "t_start", "t_end", "peer", "ready_count")


@dataclass(slots=True)
class Spread:
    """Counts of lengths in logarithmic bins (24 a decade from 100 ns on), their number and sum in ns."""

    counts: Ints = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))
    num: int = 0
    total: int = 0

    def add(self, lengths: Ints) -> None:
        """Count some lengths (ns)."""
        places = np.log10(np.maximum(lengths, 1) / LEAST_NS) * PER_DECADE + 1
        self.counts += np.bincount(np.clip(places.astype(np.int64), 0, BINS - 1), minlength=BINS)
        self.num += len(lengths)
        self.total += int(lengths.sum())

    def quantile(self, share: float) -> float:
        """Return the length (ns) below which a share of them lies, within 5 %; NaN of none."""
        if not self.num:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self.counts), share * self.num))
        return float(LEAST_NS * 10 ** ((place - 0.5) / PER_DECADE))


def edges() -> Floats:
    """Return the bounds of the bins but the first and the last, which are open (ns)."""
    return LEAST_NS * 10 ** (np.arange(BINS - 1) / PER_DECADE)


@dataclass(slots=True)
class Measures:
    """What was counted in the chosen steps.

    `latencies`: (sending world rank, receiving) -> time from when a message was enqueued until it was noticed.
    `durations`: kind -> time from dispatch to the end. `ready_sum`, `ready_num`: by stage and moment, of the choices.
    """

    windows: Windows
    stages: int
    latencies: dict[tuple[int, int], Spread] = field(default_factory=dict)
    durations: dict[Kind, Spread] = field(default_factory=dict)
    ready_sum: Ints = field(init=False)
    ready_num: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.ready_sum = np.zeros((self.stages, MOMENTS), dtype=np.int64)
        self.ready_num = np.zeros((self.stages, MOMENTS), dtype=np.int64)

    @property
    def ready_mean(self) -> Floats:
        """Mean size of the ready-set by stage and moment, NaN where nothing was chosen."""
        with np.errstate(invalid="ignore"):
            return np.where(self.ready_num > 0, self.ready_sum / np.maximum(self.ready_num, 1), np.nan)

    def add(self, rank: RankLog, rows: dict[str, Ints]) -> None:
        """Count a range of a rank's rows."""
        windows, kind = self.windows, rows["kind"]
        inside = (rows["step"] >= windows.steps[0]) & (rows["step"] <= windows.steps[-1])
        start, end = rows["t_start"], rows["t_end"]
        for each in TIMED:
            chosen = inside & (kind == each)
            if chosen.any():
                self.durations.setdefault(each, Spread()).add((end - start)[chosen])
        received = inside & (kind == Kind.RECV) & (rows["t_ready"] >= 0) & (rows["peer"] >= 0)
        for peer in np.unique(rows["peer"][received]).tolist():
            chosen = received & (rows["peer"] == peer)
            spread = self.latencies.setdefault((int(peer), rank.rank), Spread())
            spread.add(np.maximum(end - rows["t_ready"], 0)[chosen])
        chosen = inside & np.isin(kind, CHOSEN) & (start >= windows.begin) & (start < windows.end)
        moment = (start[chosen] - windows.begin) * MOMENTS // max(windows.wall, 1)
        stage = min(rank.header.stage, self.stages - 1)
        self.ready_num[stage] += np.bincount(moment, minlength=MOMENTS)
        np.add.at(self.ready_sum[stage], moment, rows["ready_count"][chosen].astype(np.int64))


def measure(run: RunLog, steps: StepChoice = None) -> Measures:
    """Count what the pictures show of the chosen steps.

    Raises
    ------
    AnalysisError
        The log holds no such step.
    """
    windows, ranks = make_windows(run, steps)
    measures = Measures(windows, run.header.mesh[0])
    with held_open(rank.rows for rank in ranks):
        for rank in ranks:
            for low, high in row_ranges(rank, windows):
                measures.add(rank, rank.rows.read(_COLUMNS, low, high))
    return measures
