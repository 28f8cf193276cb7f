"""What the critical path is made of: shares by kind, stage and edge, and the work or waiting that weighs most.

It adds up entries of paths; finding them is critical_path.py's.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.critical_path import PathEntry
from hpcpipe.plan import Kind

CULPRITS = 10

_KINDS = {kind.name: kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Culprit:
    """What one rank did or waited for on the path, all together.

    `ratio`: of a task, how long this rank takes for one relative to the mean of all ranks; else 0. `peer`: of a
    transfer or a collective, the world rank at its other end; else -1.
    """

    rank: int
    stage: int
    kind: str
    peer: int
    ns: int
    count: int
    ratio: float


@dataclass(slots=True)
class PathShares:
    """Collects the ns of paths."""

    stages: dict[int, int]
    """World rank -> stage."""
    _sums: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    _counts: Counter[tuple[int, str, int]] = field(default_factory=Counter)

    def add(self, entries: Iterable[PathEntry]) -> None:
        """Take in the entries of a path."""
        for entry in entries:
            key = (entry.rank, entry.kind, entry.peer)
            self._sums[key] += entry.t_end - entry.t_start
            self._counts[key] += 1

    @property
    def kinds(self) -> dict[str, int]:
        """Ns by kind, the most first."""
        sums: Counter[str] = Counter()
        for (_, kind, _), ns in self._sums.items():
            sums[kind] += ns
        return dict(sums.most_common())

    @property
    def by_stage(self) -> dict[int, int]:
        """Ns by stage, in order; what came from another rank counts at the stage that waited for it."""
        sums: Counter[int] = Counter()
        for (rank, _, _), ns in self._sums.items():
            sums[self.stages[rank]] += ns
        return dict(sorted(sums.items()))

    @property
    def edges(self) -> dict[tuple[int, int], int]:
        """Ns by edge (stage it comes from, stage it goes to), the most first."""
        sums: Counter[tuple[int, int]] = Counter()
        for (rank, _, peer), ns in self._sums.items():
            if peer >= 0:
                sums[self.stages[peer], self.stages[rank]] += ns
        return dict(sums.most_common())

    def culprits(self, durations: "Durations") -> tuple[Culprit, ...]:
        """Return what weighs most."""
        found = []
        for (rank, kind, peer), ns in self._sums.most_common(CULPRITS):
            count, ratio = self._counts[rank, kind, peer], durations.ratio(rank, kind)
            found.append(Culprit(rank, self.stages[rank], kind, peer, ns, count, ratio))
        return tuple(found)


@dataclass(slots=True)
class Durations:
    """Collects how long tasks take, by rank and by micro-batch."""

    _ns: Counter[tuple[int, str]] = field(default_factory=Counter)
    _count: Counter[tuple[int, str]] = field(default_factory=Counter)
    _by_microbatch: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def add(self, rank: int, kind: Kind, microbatch: NDArray[Any], ns: NDArray[np.int64]) -> None:
        """Take in the durations of a rank's tasks of one kind."""
        self._ns[rank, kind.name] += int(ns.sum())
        self._count[rank, kind.name] += len(ns)
        known = (microbatch >= 0) & (microbatch < _MOST_MICROBATCHES)
        if kind in (Kind.F, Kind.B, Kind.W) and known.any():
            size = int(microbatch[known].max()) + 1
            sums, counts = np.zeros(size, dtype=np.int64), np.bincount(microbatch[known], minlength=size)
            np.add.at(sums, microbatch[known], ns[known])
            old = self._by_microbatch.get(kind.name, (np.zeros(0, dtype=np.int64),) * 2)
            self._by_microbatch[kind.name] = _added(old[0], sums), _added(old[1], counts)

    def ratio(self, rank: int, kind: str) -> float:
        """Return a rank's mean duration of a kind relative to that of all ranks; 0 for what is no task."""
        total = sum(ns for (_, name), ns in self._ns.items() if name == kind)
        if kind not in _KINDS or not total or not self._count[rank, kind]:
            return 0.0
        usual = total / sum(count for (_, name), count in self._count.items() if name == kind)
        return self._ns[rank, kind] / self._count[rank, kind] / usual

    @property
    def by_microbatch(self) -> dict[str, list[int]]:
        """Mean ns of a task of each kind, by micro-batch; 0 where none was seen."""
        return {
            kind: np.rint(sums / np.maximum(counts, 1)).astype(np.int64).tolist()
            for kind, (sums, counts) in sorted(self._by_microbatch.items())
        }


_MOST_MICROBATCHES = 1 << 16


def _added(one: NDArray[np.int64], two: NDArray[np.int64]) -> NDArray[np.int64]:
    long, short = (one, two) if len(one) >= len(two) else (two, one)
    total = long.copy()
    total[: len(short)] += short
    return total
