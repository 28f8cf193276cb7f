"""The rows of a log in memory: one array a column, named as in the file (`bytes` is `nbytes` here).

Plain data; it knows neither files nor what the analysis makes of it.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
Times = NDArray[np.int64]

_RENAMED = {"nbytes": "bytes"}


@dataclass(frozen=True, slots=True)
class Table:
    """Arrays of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Return the names of the columns in the file."""
        return tuple(_RENAMED.get(field.name, field.name) for field in fields(cls))

    def take(self, which: NDArray[Any] | slice) -> Self:
        """Return the rows of a mask, of indices or of a range."""
        return replace(self, **{field.name: getattr(self, field.name)[which] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class Events(Table):
    """Rows of `events`; times in ns of rank 0's clock once they are read."""

    step: Column
    microbatch: Column
    kind: Column
    chunk: Column
    t_ready: Times
    t_start: Times
    t_end: Times
    wait_class: Column
    peer: Column
    nbytes: Column
    rank_in_hint: Column
    ready_count: Column
    flags: Column


@dataclass(frozen=True, slots=True)
class Steps(Table):
    """Rows of `steps`; times in ns of rank 0's clock once they are read."""

    step: Column
    t_begin: Times
    t_end: Times
    loss: Column
    grad_norm: Column
    tokens: Column
    hint: Column
    k: Column
    bucket_bytes: Column
    peak_bytes: Column


@dataclass(frozen=True, slots=True)
class Clock(Table):
    """Rows of `clock`, raw."""

    t_local: Times
    offset: Times
    round_trip: Times


@dataclass(frozen=True, slots=True)
class Decisions(Table):
    """Rows of `decisions`."""

    step: Column
    what: Column
    why: Column
