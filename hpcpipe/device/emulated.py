"""A device that computes nothing: a task takes its time without using the core, so many ranks fit on few cores.

Its messages are real bytes. It knows neither the plan nor how long a task should take, and it needs no array library.
"""

import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcpipe.device.sleeping import sleep_precisely


@dataclass(frozen=True, slots=True)
class Timed:
    """A task that is done when its time has come."""

    now: Callable[[], int]
    due: int
    output: memoryview | None
    again: Sequence[tuple[int, int]] = ()
    in_order: bool = False
    times: tuple[int, int] | None = None

    def done(self) -> bool:
        """Return whether its time has come."""
        return self.now() >= self.due

    def result(self) -> memoryview | None:
        """Return its output."""
        return self.output


class Emulated:
    """Bytes for values, and the clock for a processor.

    Parameters
    ----------
    now
        The clock of the run, ns.
    in_order
        Whether it takes tasks while it has others and does them in the order given, as a GPU does.
    """

    threads = 0

    def __init__(self, now: Callable[[], int], *, in_order: bool = False) -> None:
        self._now = now
        self._in_order = in_order
        self._free_at = 0
        sleep_precisely()

    @property
    def name(self) -> str:
        """What logs and reports call it, so that nobody takes its times for a machine's."""
        return "emulated"

    def run(self, duration: int, output: memoryview | None = None) -> Timed:
        """Start a task of `duration` ns."""
        begin = self._now()
        if not self._in_order:
            return Timed(self._now, begin + duration, output)
        begin = max(begin, self._free_at)
        self._free_at = due = begin + duration
        return Timed(self._now, due, output, in_order=True, times=(begin, due))

    def buffer(self, num_bytes: int) -> bytearray:
        """Return bytes for a message."""
        return bytearray(num_bytes)

    def view(self, buffer: bytearray) -> memoryview:
        """Return a buffer's bytes."""
        return memoryview(buffer)

    def head(self, buffer: bytearray, num_bytes: int = 0) -> memoryview:
        """Return a buffer's bytes: a message is read and written where it lies."""
        del num_bytes
        return memoryview(buffer)

    def sealed(self, _buffer: bytearray, _begin: int, _end: int) -> Timed | None:
        """Return when values that the task started last has made are there; None if it is done."""
        return Timed(self._now, self._free_at, None) if self._free_at > self._now() else None

    def addressed(self, _buffer: bytearray, _num_bytes: int) -> None:
        """Return that a header is where it was written."""

    def opened(self, _buffer: bytearray, _num_bytes: int) -> None:
        """Return that a header can be read where it arrived."""

    def landed(self, _buffer: bytearray, _begin: int, _end: int) -> None:
        """Return that values can be used where they arrived."""

    def describe(self, value: memoryview) -> tuple[str, tuple[int, ...], bool, tuple[int, ...]]:
        """Return that a value is bytes, how many, and that they want no gradient."""
        return "uint8", (value.nbytes,), False, ()

    def store(self, value: memoryview, buffer: bytearray, at: int) -> None:
        """Copy a value into a buffer."""
        buffer[at : at + value.nbytes] = value

    def load(
        self, buffer: bytearray, at: int, described: tuple[str, tuple[int, ...], bool, tuple[int, ...]]
    ) -> memoryview:
        """Return a view of what a buffer holds."""
        return memoryview(buffer)[at : at + described[1][0]]

    def peak_bytes(self) -> int:
        """Return the most memory that this process has held, in bytes (Linux reports KiB)."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def grown(self) -> str:
        """Return nothing: memory is the operating system's."""
        return ""
