"""A task that a device has been given: is it done, and what came out.

The engine goes on with messages while one runs; it must not know whether a CPU, a GPU or a clock does the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Running(Protocol):
    """A started task."""

    @property
    def due(self) -> int | None:
        """When it will be done (ns of this host's monotonic clock), or None where nobody knows beforehand."""

    @property
    def in_order(self) -> bool:
        """Whether the device does everything in the order given, so that its output may be given to what follows."""

    @property
    def times(self) -> tuple[int, int] | None:
        """When the device began and ended it (ns of this host's clock), if it knows better; only when it is done."""

    @property
    def again(self) -> Sequence[tuple[int, int]]:
        """When, within the task, activations were computed that had been dropped: begin and end, ns."""

    def done(self) -> bool:
        """Return whether the device has done it; never blocks."""

    def result(self) -> Any:
        """Return what another task needs of it, or None; only when it is done, or at once where all is in order."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A task whose start has done it all."""

    output: Any = None
    due: int | None = None
    again: Sequence[tuple[int, int]] = ()
    in_order: bool = False
    times: tuple[int, int] | None = None

    def done(self) -> bool:
        """Return that it is done."""
        return True

    def result(self) -> Any:
        """Return its output."""
        return self.output
