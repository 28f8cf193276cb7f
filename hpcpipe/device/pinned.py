"""Page-locked host memory for copies to and from a GPU, kept for further use: making it takes milliseconds.

It knows neither messages nor CUDA; what makes the memory is given to it. Under it lies torch's `pin_memory`, so that no
other package is needed; that rounds sizes up to powers of two, and here what has been made once is used again.
"""

import weakref
from collections.abc import Callable
from typing import Any

Allocate = Callable[[int], Any]
"""Bytes -> a 1-D uint8 tensor of pinned host memory."""


class PinnedPool:
    """Memory that comes back when its user is gone.

    Attributes
    ----------
    allocations
        How often memory had to be made; in a steady state this stays as it is.
    """

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._idle: dict[int, list[Any]] = {}
        self.allocations = 0

    def take(self, num_bytes: int, user: object) -> Any:
        """Return `num_bytes` of pinned memory for as long as `user` exists.

        The user must stay as long as a copy or MPI reads or writes the memory.
        """
        size = _rounded(num_bytes)
        idle = self._idle.setdefault(size, [])
        if idle:
            block = idle.pop()
        else:
            block = self._allocate(size)
            self.allocations += 1
        weakref.finalize(user, idle.append, block).atexit = False
        return block[:num_bytes]


def _rounded(num_bytes: int) -> int:
    """Return the size or up to an eighth more, so that sizes that differ a little share memory."""
    grain = 1 << max(8, num_bytes.bit_length() - 4)
    return max(1, -(-num_bytes // grain)) * grain
