"""The steps that are analysed, as windows of time that are the same for every rank.

A window ends when the last rank ends the step, so what a rank does ahead of the others counts where it happens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.events import RankLog, RunLog


class AnalysisError(Exception):
    """A log that holds nothing to analyse, or steps that it does not hold; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Window i is `edges[i] <= t < edges[i + 1]` (ns of rank 0's clock) and belongs to `steps[i]`."""

    steps: NDArray[np.int64]
    edges: NDArray[np.int64]

    @property
    def begin(self) -> int:
        """Begin of the first window."""
        return int(self.edges[0])

    @property
    def end(self) -> int:
        """End of the last window."""
        return int(self.edges[-1])

    @property
    def wall(self) -> int:
        """Length of all windows together in ns."""
        return self.end - self.begin

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Length of every window in ns."""
        return np.diff(self.edges)


def make_windows(
    run: RunLog, steps: tuple[int | None, int | None] | None = None
) -> tuple[Windows, tuple[RankLog, ...]]:
    """Return the windows of the steps that all ranks finished, and the ranks that finished any.

    Parameters
    ----------
    steps
        First and last step wanted, both included; None on a side takes all there are.

    Raises
    ------
    AnalysisError
        No step is left.
    """
    ranks = tuple(rank for rank in run.ranks if len(rank.steps))
    if not ranks:
        raise AnalysisError(f"{run.path}: no rank has finished a step yet: nothing to analyse")
    common = ranks[0].steps.step.astype(np.int64)
    for rank in ranks[1:]:
        common = np.intersect1d(common, rank.steps.step)
    common = np.unique(common)
    if not len(common):
        raise AnalysisError(f"{run.path}: there is no step that all ranks finished")
    ends = np.maximum.accumulate(np.max([_of_steps(rank, common, rank.steps.t_end) for rank in ranks], axis=0))
    begin = max(int(_of_steps(rank, common, rank.steps.t_begin)[0]) for rank in ranks)
    edges = np.concatenate([[min(begin, int(ends[0]))], ends])
    first, last = steps or (None, None)
    chosen = (common >= (common[0] if first is None else first)) & (common <= (common[-1] if last is None else last))
    if not chosen.any():
        there = f"{common[0]} to {common[-1]}"
        raise AnalysisError(f"{run.path}: no step in {_words(first)}:{_words(last)}; all ranks finished {there}")
    low, high = int(np.argmax(chosen)), int(len(chosen) - np.argmax(chosen[::-1]))
    windows = Windows(common[low:high], edges[low : high + 1])
    if not windows.wall:
        raise AnalysisError(f"{run.path}: the steps take no time at all: nothing to analyse")
    return windows, ranks


def _of_steps(rank: RankLog, steps: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(rank.steps.step, kind="stable")
    return values[order[np.searchsorted(rank.steps.step[order], steps)]]


def _words(step: int | None) -> str:
    return "" if step is None else str(step)
