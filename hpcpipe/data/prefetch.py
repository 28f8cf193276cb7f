"""Read the next step's data in a thread while this step computes.

What is read is a function of the step alone, so a thread changes when it is read and nothing else. Threads, not
processes: a process that has started MPI must not fork.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetched(Generic[T]):
    """`take(step)` returns `read(step)`, read ahead where the step before was the last one taken.

    Parameters
    ----------
    steps
        The step from which on nothing is read ahead.
    """

    def __init__(self, read: Callable[[int], T], *, steps: int) -> None:
        self._read = read
        self._steps = steps
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hpcpipe-data")
        self._ahead: tuple[int, Future[T]] | None = None

    def take(self, step: int) -> T:
        """Return what `read` gives for the step, or raise what it raises, and have the next step read."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == step:
            value = ahead[1].result()
        else:
            if ahead is not None:
                ahead[1].cancel()
            value = self._pool.submit(self._read, step).result()
        if step + 1 < self._steps:
            self._ahead = step + 1, self._pool.submit(self._read, step + 1)
        return value
