"""What a stage can do: kinds of work and the task, the unit that is scheduled, logged and replayed.

Pure data: nothing here may know about torch, MPI, time or files.
"""

from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """A kind of work. The numbers are the `kind` column of the event log, so they are never reused."""

    F = 0
    B = 1
    W = 2
    RS = 3
    UPDATE = 4
    AG = 5
    SEND = 6
    RECV = 7
    AGREE = 8
    NORM = 9
    DATA = 10
    CHECKPOINT = 11
    WAIT = 12


class Task(NamedTuple):
    """One piece of work on one stage.

    `microbatch` counts from 0 in admission order; for RS, UPDATE and AG it is the number of the fusion bucket, for
    NORM 0.
    `chunk` is the virtual stage on this rank, 0 where a rank holds one.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")
