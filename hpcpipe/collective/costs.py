"""What each algorithm of each collective costs, as alpha + beta n, and which one to take for a buffer; knows no MPI.

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
    """The costs of every operation's algorithms between certain ranks."""

    costs: Mapping[tuple[Operation, Algorithm], Cost]

    def cheapest(self, operation: Operation, num_bytes: int) -> Algorithm:
        """Return the algorithm to take for a buffer of so many bytes."""
        return min(
            INTERCHANGEABLE[operation],
            key=lambda algorithm: self.costs[operation, algorithm].microseconds(num_bytes),
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Return what `from_json` reads."""
        return [
            {"operation": operation, "algorithm": algorithm, "alpha_us": cost.alpha_us, "beta_ns": cost.beta_ns}
            for (operation, algorithm), cost in self.costs.items()
        ]

    @classmethod
    def from_json(cls, rows: Sequence[Mapping[str, Any]]) -> "CostTable":
        """Read a table; raise KeyError, TypeError or ValueError if it is not whole."""
        costs = {
            (row["operation"], row["algorithm"]): Cost(float(row["alpha_us"]), float(row["beta_ns"])) for row in rows
        }
        wanted = {(operation, algorithm) for operation in OPERATIONS for algorithm in ALGORITHMS}
        if set(costs) != wanted:
            raise ValueError("a table of costs must have every operation and algorithm once")
        return cls(costs)


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
