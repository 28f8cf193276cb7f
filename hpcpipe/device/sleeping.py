"""Sleep to the microsecond: Linux lets a thread's sleeps last 50 microseconds longer unless it is asked not to."""

import ctypes
import sys

_PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Ask the kernel not to prolong this thread's sleeps; elsewhere than on Linux nothing is asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
