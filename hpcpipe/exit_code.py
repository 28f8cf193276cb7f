"""The exit codes of the command, which scripts rely on; every rank of a run ends with the same one."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended. The numbers are a contract and never reused."""

    DONE = 0
    INTERNAL = 1
    INPUT = 2
    ENVIRONMENT = 3
    RANK_FAILED = 4
    DIVERGED = 5
    HANG = 6
    REQUEUE = 75
    INTERRUPTED = 130
