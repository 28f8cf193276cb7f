"""Efficiencies in the vocabulary of POP (pop-coe.eu) and TALP, from useful time, wall time and that of an ideal run.

parallel = load balance x communication; communication = serialization x transfer. The ideal run is replay.py's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Efficiency:
    """U = useful time of a rank, T = wall time, T_ideal = wall time if every message and collective took no time."""

    parallel: float
    """mean(U) / T"""
    load_balance: float
    """mean(U) / max(U)"""
    communication: float
    """max(U) / T"""
    serialization: float
    """max(U) / T_ideal"""
    transfer: float
    """T_ideal / T"""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """By step: sum and maximum over ranks of useful time, length, and length without a network (ns)."""

    useful: Ints
    most_useful: Ints
    wall: Ints
    ideal: Ints

    def efficiencies(self, ranks: int) -> dict[str, Floats]:
        """Return a column of each efficiency, 0 in a step without work."""
        mean, most = self.useful / ranks, self.most_useful.astype(np.float64)
        wall, ideal = self.wall.astype(np.float64), self.ideal.astype(np.float64)
        return {
            "parallel": _ratio(mean, wall),
            "load_balance": _ratio(mean, most),
            "communication": _ratio(most, wall),
            "serialization": _ratio(most, ideal),
            "transfer": _ratio(ideal, wall),
        }


def efficiency(useful: Ints, wall: int, ideal: int) -> Efficiency:
    """Return the efficiencies of ranks that did `useful` ns each of work in `wall` ns; all 0 where no work was done."""
    mean, most = float(np.mean(useful)), int(np.max(useful))
    if not most:
        return Efficiency(0.0, 0.0, 0.0, 0.0, 0.0)
    return Efficiency(mean / wall, mean / most, most / wall, most / ideal, ideal / wall)


def _ratio(over: Floats, under: Floats) -> Floats:
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)
