"""The classes into which every nanosecond of a rank's step is put, exactly one each.

The runtime names the cause of a wait with them, the analysis adds them up; neither invents its own.
"""

from enum import IntEnum


class TimeClass(IntEnum):
    """An accounting class. The numbers are the `wait_class` column of the event log, so they are never reused."""

    NONE = 0
    FORWARD = 1
    BACKWARD = 2
    WEIGHT = 3
    UPDATE = 4
    RECOMPUTE = 5
    WARMUP = 6
    DRAIN = 7
    DEPENDENCY = 8
    TRANSFER = 9
    ORDER = 10
    CAP = 11
    AGREEMENT = 12
    EXPOSED_COMM = 13
    DATA = 14
    CHECKPOINT = 15
    RUNTIME = 16


USEFUL = (TimeClass.FORWARD, TimeClass.BACKWARD, TimeClass.WEIGHT, TimeClass.UPDATE)
