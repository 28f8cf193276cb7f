"""What each algorithm of each collective was measured to cost, and which one to take for a buffer; knows no MPI.

The choice never changes a sum's bits: it is made only between algorithms that add in the same order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

Operation = Literal["reduce_scatter", "all_gather"]
Algorithm = Literal["ring", "recursive", "direct"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

INTERCHANGEABLE: Mapping[Operation, tuple[Algorithm, ...]] = {
    "reduce_scatter": ("ring", "direct"),
    "all_gather": ALGORITHMS,
}
"""Those with the same result to the bit: recursive halving adds in a tree, and a gather adds nothing."""

DIRECT_UNTIL_BYTES = 1 << 20
"""Without a table: in one step while latency counts, around the ring when bandwidth does."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An operation on a buffer of n bytes takes alpha_us + n beta_ns / 1000 microseconds."""

    alpha_us: float
    beta_ns: float

    def microseconds(self, num_bytes: int) -> float:
        """Return how long it takes."""
        return self.alpha_us + num_bytes * self.beta_ns / 1000


@dataclass(frozen=True, slots=True)
class CostTable:
    """The times of every operation's algorithms between certain ranks, on buffers of growing sizes in bytes."""

    sizes: tuple[int, ...]
    times_us: Mapping[tuple[Operation, Algorithm], tuple[float, ...]]

    def microseconds(self, operation: Operation, algorithm: Algorithm, num_bytes: int) -> float:
        """Return how long it takes: between measured sizes along a line, beyond them by the fit of all."""
        times = self.times_us[operation, algorithm]
        if self.sizes[0] <= num_bytes <= self.sizes[-1]:
            return float(np.interp(num_bytes, self.sizes, times))
        return fit(self.sizes, times).microseconds(num_bytes)

    def cheapest(self, operation: Operation, num_bytes: int) -> Algorithm:
        """Return the algorithm to take for a buffer of so many bytes."""
        return min(INTERCHANGEABLE[operation], key=lambda algorithm: self.microseconds(operation, algorithm, num_bytes))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        rows = [{"operation": key[0], "algorithm": key[1], "us": list(times)} for key, times in self.times_us.items()]
        return {"bytes": list(self.sizes), "times": rows}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "CostTable":
        """Read a table; raise KeyError, TypeError or ValueError if it is not whole."""
        sizes = tuple(int(size) for size in document["bytes"])
        times = {(row["operation"], row["algorithm"]): tuple(map(float, row["us"])) for row in document["times"]}
        wanted = {(operation, algorithm) for operation in OPERATIONS for algorithm in ALGORITHMS}
        if set(times) != wanted or not sizes or any(len(row) != len(sizes) for row in times.values()):
            raise ValueError("a table of costs must have a time for every operation, algorithm and size")
        return cls(sizes, times)


def default_algorithm(num_bytes: int) -> Algorithm:
    """Return what to take where nothing has been measured."""
    return "direct" if num_bytes <= DIRECT_UNTIL_BYTES else "ring"


def fit(sizes: Sequence[int], microseconds: Sequence[float]) -> Cost:
    """Fit a cost to times by least squares of the relative error; neither part is negative."""
    size, took = np.asarray(sizes, float), np.asarray(microseconds, float)
    if len(set(sizes)) < 2:
        return Cost(0.0, float(np.mean(took / size)) * 1000)
    columns = np.stack([1 / took, size / took], axis=1)
    alpha, beta = np.linalg.lstsq(columns, np.ones(len(took)), rcond=None)[0]
    if alpha < 0:
        alpha, beta = 0.0, _scale(columns[:, 1])
    elif beta < 0:
        alpha, beta = _scale(columns[:, 0]), 0.0
    return Cost(float(alpha), float(beta) * 1000)


def _scale(column: np.ndarray) -> float:
    """Return x that minimises |x column - 1|."""
    return float(column.sum() / (column @ column))
