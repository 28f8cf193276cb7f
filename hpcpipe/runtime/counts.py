"""Messages of any length for MPI libraries that count in 32 bits: beyond 2 GiB they are counted in larger units.

What matters to MPI is that both ends mean the same bytes; the units that they count in may differ. mpi4py refuses such
counts where the library has no large-count functions (mpi4py 119, 575); with units of two bytes and more it need not.
"""

from functools import lru_cache
from typing import Any

from mpi4py import MPI

MOST = 2**31 - 1
"""The largest count that every MPI library takes."""


def padded(num_bytes: int) -> int:
    """Return the bytes that a buffer must have so that a message of `num_bytes` can be counted."""
    unit = _unit(num_bytes)
    return -(-num_bytes // unit) * unit


def counted(view: Any, num_bytes: int) -> list[Any]:
    """Return the first `num_bytes` of a buffer, which has room to pad them, as mpi4py's calls take them."""
    if num_bytes <= MOST:
        return [view[:num_bytes], MPI.BYTE]
    unit = _unit(num_bytes)
    return [view, -(-num_bytes // unit), _type(unit)]


def _unit(num_bytes: int) -> int:
    unit = 1
    while -(-num_bytes // unit) > MOST:
        unit *= 2
    return unit


@lru_cache
def _type(num_bytes: int) -> "MPI.Datatype":
    return MPI.BYTE.Create_contiguous(num_bytes).Commit()
