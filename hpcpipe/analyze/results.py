"""What an analysis finds: the numbers of a report as plain data, for text, JSON, pictures and comparisons.

It computes nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.critical_path import PathEntry
from hpcpipe.analyze.decided import Decided
from hpcpipe.analyze.describe import Description
from hpcpipe.analyze.efficiency import Efficiency, StepTimes
from hpcpipe.analyze.shares import Culprit
from hpcpipe.analyze.throughput import Throughput
from hpcpipe.analyze.waits import Wait
from hpcpipe.plan import USEFUL, TimeClass

Ints = NDArray[np.int64]


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
    """A run's analysis. `wall_ns` is the time that passed, the same for every rank; `classes` are sums over ranks.

    `path_*` and `culprits` sum up the critical paths of all steps, `critical_path` lists those of `listed_steps`.
    `step_classes` has a row a step and a column a class, in ns summed over ranks; `step_times` goes with it.
    `waited_for`: (rank that waited, rank waited for, class) -> ns. `finished`: False where no step was.
    `step_k` is the group of kFkB of every step, 0 where micro-batches are not grouped.
    """

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
    listed_steps: tuple[int, int]
    path_kinds: dict[str, int]
    path_stages: dict[int, int]
    path_edges: dict[tuple[int, int], int]
    culprits: tuple[Culprit, ...]
    longest_waits: tuple[Wait, ...]
    waited_for: dict[tuple[int, int, TimeClass], int]
    throughput: Throughput
    step_numbers: Ints
    step_times: StepTimes
    step_classes: Ints
    microbatch_ns: dict[str, list[int]]
    finished: bool
    dispatch_overhead_ns_per_task: int
    gaps: tuple[str, ...]
    decisions: tuple[Decided, ...] = ()
    step_k: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document of `analyze --json`."""
        from hpcpipe.analyze.document import to_json

        return to_json(self)
