"""The one place where time comes from: a monotonic clock in ns, and its offset to rank 0's clock.

Nothing else in the package may read a clock for an event.
"""

from collections.abc import Iterator
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Word = NDArray[np.int64]

_ROUND_TRIPS = 32


class ClockSample(NamedTuple):
    """One comparison with rank 0: `offset` = this clock minus rank 0's, known to half of `round_trip`; all ns."""

    local: int
    offset: int
    round_trip: int


def now() -> int:
    """Return this rank's monotonic time in ns."""
    return monotonic_ns()


def compare_clocks(comm: "MPI.Intracomm") -> ClockSample:
    """Compare every rank's clock with rank 0's, one rank at a time, and return this rank's best sample (collective).

    Of many round trips the shortest is kept: it bounds the error by half its length (Cristian, 1989).
    """
    if comm.rank == 0:
        for peer in range(1, comm.size):
            _answer(comm, peer)
        return ClockSample(now(), 0, 0)
    word = np.zeros(1, dtype=np.int64)
    samples: Iterator[ClockSample] = (_ask(comm, word) for _ in range(_ROUND_TRIPS))
    return min(samples, key=lambda sample: sample.round_trip)


def _ask(comm: "MPI.Intracomm", word: Word) -> ClockSample:
    sent = now()
    comm.Send(word, dest=0)
    comm.Recv(word, source=0)
    received = now()
    return ClockSample(received, (sent + received) // 2 - int(word[0]), received - sent)


def _answer(comm: "MPI.Intracomm", peer: int) -> None:
    word = np.zeros(1, dtype=np.int64)
    for _ in range(_ROUND_TRIPS):
        comm.Recv(word, source=peer)
        word[0] = now()
        comm.Send(word, dest=peer)
