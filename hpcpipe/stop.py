"""A wish to stop that comes as a signal: noted at once, followed by all ranks together when the step's sums say so.

It knows neither steps nor files; what a second signal does is the caller's. It is imported before MPI may start.
"""

import signal
import threading
from collections.abc import Callable
from time import monotonic_ns
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Those that ask for an orderly stop: batch systems send one of them before the time is up."""

_SAME_NS = 1_000_000_000


class StopWish:
    """Notes the signals that arrive while it is entered (a `with` block of the main thread).

    One wish may arrive by several doors (a supervisor signals every process, launchers hand on what they get), so what
    comes within a second of the first is the same one. A later one calls `leave` with its number.
    What `early` has noted before counts as well.
    """

    def __init__(self, leave: Callable[[int], None], *, early: "StopWish | None" = None) -> None:
        self._leave = leave
        self._first: int | None = None if early is None else early._first
        self._came: set[int] = set() if early is None else set(early._came)
        self._earlier: dict[int, Any] = {}

    @property
    def came(self) -> tuple[float, ...]:
        """Which of SIGNALS have come, 1.0 or 0.0 for each, so that sums over ranks count them."""
        return tuple(float(number in self._came) for number in SIGNALS)

    def __enter__(self) -> "StopWish":
        if threading.current_thread() is threading.main_thread():
            self._earlier = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        time = monotonic_ns()
        if self._first is None:
            self._first = time
        elif time - self._first > _SAME_NS:
            self._leave(number)
        self._came.add(number)


def describe(counts: tuple[float, ...], ranks: int) -> str:
    """Return which signals came to how many ranks, from the sums of `came`."""
    return " and ".join(
        f"{signal.Signals(number).name} to {round(count)} of {ranks} ranks"
        for number, count in zip(SIGNALS, counts, strict=True)
        if count
    )
