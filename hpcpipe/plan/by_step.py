"""A setting that changes between two steps, known before the first of them: what it is at a step, and since when.

Pure, so that whoever has been told of the same changes reads the same values; what the value means is not known here.
"""

from typing import Generic, TypeVar

T = TypeVar("T")

_LOOKS_BACK = 2
"""For how many steps before the newest change older values are kept."""


class ByStep(Generic[T]):
    """A value by step. Another thread may read while it is changed.

    Parameters
    ----------
    first
        The value before any change.
    """

    def __init__(self, first: T) -> None:
        self._changes: tuple[tuple[int, T], ...] = ((-1, first),)

    def change(self, step: int, value: T) -> None:
        """Let the value be another one from a step on; steps must not go back, and a step's second value counts."""
        assert step >= self._changes[-1][0], f"a change from step {step} on after one from {self._changes[-1][0]} on"
        kept = [each for each in self._changes if each[0] < step]
        first = max((i for i, (since, _) in enumerate(kept) if since <= step - _LOOKS_BACK), default=0)
        self._changes = (*kept[first:], (step, value))

    def at(self, step: int) -> T:
        """Return the value of a step, which may be two steps before the newest change, or any later one."""
        return self._entry(step)[1]

    def since(self, step: int) -> int:
        """Return the step from which on the value of a step has been in force; -1 from the begin on."""
        return self._entry(step)[0]

    def _entry(self, step: int) -> tuple[int, T]:
        changes = self._changes
        return next((each for each in reversed(changes) if each[0] <= step), changes[0])
