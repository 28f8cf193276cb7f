"""The columns of a log that the analysis works on, as arrays; rows of sends are left where they are.

It reads; what a row means is accounting's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.events import RankLog
from hpcpipe.events.tables import Column, Table, Times
from hpcpipe.plan import FLAG_RECOMPUTED, Kind

OWN = (Kind.F, Kind.B, Kind.W, Kind.UPDATE, Kind.DATA, Kind.CHECKPOINT, Kind.WAIT)
"""Kinds of rows that are time of the rank: one after the other, written when they end."""

AGAIN = 255
"""Stands, in what `read_rows` returns, for the kind of a forward done again: time within a backward, and no task."""


def computed_again(kind: NDArray[np.uint8], flags: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which rows are forwards that were done again within a backward."""
    return (kind == Kind.F) & (flags & FLAG_RECOMPUTED != 0)


@dataclass(frozen=True, slots=True)
class Rows(Table):
    """Rows of `events` without those columns that no figure needs; times in ns of rank 0's clock."""

    step: Column
    microbatch: Column
    kind: Column
    chunk: Column
    t_ready: Times
    t_start: Times
    t_end: Times
    wait_class: Column
    peer: Column
    flags: Column

    @classmethod
    def joined(cls, parts: "list[Rows]") -> "Rows":
        """Return the rows of all parts (at least one), in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.column_names()))


def read_rows(rank: RankLog, start: int = 0, stop: int | None = None) -> Rows:
    """Return rows `start` to `stop` of a rank, but for its sends."""
    names = Rows.column_names()
    values = rank.rows.read(names, start, stop)
    values["kind"] = np.where(computed_again(values["kind"], values["flags"]), np.uint8(AGAIN), values["kind"])
    keep: NDArray[np.bool_] = values["kind"] != Kind.SEND
    return Rows(*(values[name][keep] for name in names))
