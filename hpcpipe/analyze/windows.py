"""The steps that are analysed, as windows of time that are the same for every rank.

A window ends when the last rank ends the step, so what a rank does ahead of the others counts where it happens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.rows import OWN, read_rows
from hpcpipe.events import RankLog, RunLog

Ints = NDArray[np.int64]
StepChoice = tuple[int | None, int | None] | None


class AnalysisError(Exception):
    """A log that holds nothing to analyse, or steps that it does not hold; the message is a sentence for the user."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Window i is `edges[i] <= t < edges[i + 1]` (ns of rank 0's clock) and belongs to `steps[i]`.

    `last[i]` is the position, among the analysed ranks, of the rank that ended the step last. `finished` is False
    where no step was: then the last window ends where the logs do.
    """

    steps: Ints
    edges: Ints
    last: Ints
    finished: bool = True

    def __len__(self) -> int:
        return len(self.steps)

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
    def lengths(self) -> Ints:
        """Length of every window in ns."""
        return np.diff(self.edges)

    def part(self, low: int, high: int) -> "Windows":
        """Return windows `low` to `high`, the latter not included."""
        return Windows(self.steps[low:high], self.edges[low : high + 1], self.last[low:high], self.finished)

    def batches(self, size: int) -> Iterator["Windows"]:
        """Yield all windows in order, `size` at a time."""
        for low in range(0, len(self), size):
            yield self.part(low, min(low + size, len(self)))


def make_windows(run: RunLog, steps: StepChoice = None) -> tuple[Windows, tuple[RankLog, ...]]:
    """Return the windows of the steps that all ranks finished, and the ranks that finished any.

    Where no rank has finished a step, the windows are those of the steps that were begun.

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
    windows = _finished(ranks) if ranks else None
    if windows is None:
        ranks = tuple(rank for rank in run.ranks if len(rank.rows))
        windows = _begun(run, ranks)
    chosen = _choose(run, windows, steps)
    if not chosen.wall:
        raise AnalysisError(f"{run.path}: the steps take no time at all: nothing to analyse")
    return chosen, ranks


def _finished(ranks: tuple[RankLog, ...]) -> Windows | None:
    common = np.unique(ranks[0].steps.step.astype(np.int64))
    for rank in ranks[1:]:
        common = np.intersect1d(common, rank.steps.step)
    if not len(common):
        return None
    table = np.array([_of_steps(rank, common, rank.steps.t_end) for rank in ranks])
    ends = np.maximum.accumulate(table.max(axis=0))
    begin = max(int(_of_steps(rank, common, rank.steps.t_begin)[0]) for rank in ranks)
    edges = np.concatenate([[min(begin, int(ends[0]))], ends])
    return Windows(common, edges, np.argmax(table, axis=0).astype(np.int64))


def _begun(run: RunLog, ranks: tuple[RankLog, ...]) -> Windows:
    """Return the windows of steps that nobody finished: each ends with its last row."""
    begins: dict[int, int] = {}
    ends: dict[int, tuple[int, int]] = {}
    for position, rank in enumerate(ranks):
        rows = read_rows(rank)
        rows = rows.take(np.isin(rows.kind, OWN) & (rows.step >= 0))
        for step in np.unique(rows.step).tolist():
            own = rows.take(rows.step == step)
            begins[step] = min(begins.get(step, int(own.t_start.min())), int(own.t_start.min()))
            ends[step] = max(ends.get(step, (int(own.t_end.max()), position)), (int(own.t_end.max()), position))
    if not begins:
        what = "no rank has finished a step yet, and no task is in the log"
        raise AnalysisError(f"{run.path}: {what}: nothing to analyse")
    steps = sorted(begins)
    edges = np.maximum.accumulate(np.array([begins[steps[0]], *(ends[step][0] for step in steps)], dtype=np.int64))
    last = np.array([ends[step][1] for step in steps], dtype=np.int64)
    return Windows(np.array(steps, dtype=np.int64), edges, last, finished=False)


def _choose(run: RunLog, windows: Windows, steps: StepChoice) -> Windows:
    first, last = steps or (None, None)
    there = windows.steps
    chosen = (there >= (there[0] if first is None else first)) & (there <= (there[-1] if last is None else last))
    if not chosen.any():
        found = f"{there[0]} to {there[-1]}"
        who = "all ranks finished" if windows.finished else "no step was finished, begun were"
        raise AnalysisError(f"{run.path}: no step in {_words(first)}:{_words(last)}; {who} {found}")
    return windows.part(int(np.argmax(chosen)), int(len(chosen) - np.argmax(chosen[::-1])))


def _of_steps(rank: RankLog, steps: Ints, values: Ints) -> Ints:
    order = np.argsort(rank.steps.step, kind="stable")
    return values[order[np.searchsorted(rank.steps.step[order], steps)]]


def _words(step: int | None) -> str:
    return "" if step is None else str(step)
