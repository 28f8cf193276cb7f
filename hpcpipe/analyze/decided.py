"""What a run decided about itself while it went on, and how its steps were grouped: from the log of its first rank.

All ranks decide alike, so one log tells it. Why something was decided are the run's own words.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpipe.events import RankLog

GROUPING = "grouping"
"""What decisions about the group and size of micro-batches are called."""

_NO_CHANGE = ("keep:", "network:", "stay:")


class Decided(NamedTuple):
    """A decision, and the first step that it holds for."""

    step: int
    what: str
    why: str

    @property
    def changes(self) -> bool:
        """Whether anything is done otherwise from then on."""
        return self.what != GROUPING or not self.why.startswith(_NO_CHANGE)


def decisions_of(rank: RankLog, first: int, last: int) -> tuple[Decided, ...]:
    """Return the decisions that hold from one of some steps on, first and last included."""
    rows = rank.decisions
    columns = (rows.step.tolist(), map(_text, rows.what.tolist()), map(_text, rows.why.tolist()))
    return tuple(each for each in map(Decided, *columns) if first <= each.step <= last)


def groups_of(rank: RankLog, steps: NDArray[np.int64]) -> tuple[int, ...]:
    """Return k of some steps, 0 where micro-batches are not grouped or the log does not say."""
    known = dict(zip(rank.steps.step.tolist(), rank.steps.k.tolist(), strict=True))
    return tuple(known.get(step, 0) for step in steps.tolist())


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
