"""Efficiencies in the vocabulary of POP (pop-coe.eu) and TALP, with the ideal time from a replay without a network.

parallel = load balance x communication; communication = serialization x transfer. It reads the graph and nothing else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.graph import TaskGraph
from hpcpipe.analyze.windows import Windows


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


def efficiency(useful: NDArray[np.int64], wall: int, ideal: int) -> Efficiency:
    """Return the efficiencies of ranks that did `useful` ns each of work in `wall` ns; all 0 where no work was done."""
    mean, most = float(np.mean(useful)), int(np.max(useful))
    if not most:
        return Efficiency(0.0, 0.0, 0.0, 0.0, 0.0)
    return Efficiency(mean / wall, mean / most, most / wall, most / ideal, ideal / wall)


def ideal_wall(graph: TaskGraph, windows: Windows) -> int:
    """Replay the recorded order of every rank with the recorded durations and nothing between the tasks.

    Never more than the wall time. Where clocks are off so far that a task starts before what it needs, that need is
    left out.
    """
    tasks = graph.tasks
    starts = np.maximum(tasks.t_start, windows.begin)
    durations = (np.minimum(tasks.t_end, windows.end) - starts).tolist()
    order = np.lexsort((tasks.t_end, tasks.t_start)).tolist()
    ranks = tasks.rank.tolist()
    free = [0] * (len(graph.bounds) - 1)
    finished = [-1] * len(tasks)
    for task in order:
        begin = free[ranks[task]]
        for edge in graph.edges.get(task, ()):
            if edge.source >= 0:
                begin = max(begin, finished[edge.source])
        finished[task] = free[ranks[task]] = begin + durations[task]
    return min(max(free, default=0), windows.wall)
