"""The one place where time comes from: a monotonic clock in ns, and its offset to rank 0's clock.

Nothing else in the package may read a clock for an event.
"""

from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpipe.runtime.mesh import Place
from hpcpipe.runtime.world import World

if TYPE_CHECKING:
    from mpi4py import MPI

Word = NDArray[np.int64]

_FEWEST_TRIPS, _MOST_TRIPS = 16, 512
_GOOD_NS = 8_000
"""A round trip that needs no better one: it is known to 4 µs then."""
_TURN_PAUSE_S = 100e-6
_ENOUGH = -1


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

    Of many round trips the shortest is kept: it bounds the error by half its length (Cristian, 1989). More are made
    while none was short. Ranks that wait for their turn sleep, so that they do not disturb the one whose turn it is.
    """
    if comm.rank == 0:
        for peer in range(1, comm.size):
            _answer(comm, peer)
        return ClockSample(now(), 0, 0)
    word = np.zeros(1, dtype=np.int64)
    while not comm.Iprobe(source=0):
        sleep(_TURN_PAUSE_S)
    comm.Recv(word, source=0)
    best = _ask(comm, word)
    for trip in range(1, _MOST_TRIPS):
        if best.round_trip <= _GOOD_NS and trip >= _FEWEST_TRIPS:
            break
        best = min(best, _ask(comm, word), key=lambda sample: sample.round_trip)
    word[0] = _ENOUGH
    comm.Send(word, dest=0)
    return best


def _ask(comm: "MPI.Intracomm", word: Word) -> ClockSample:
    word[0] = 0
    sent = now()
    comm.Send(word, dest=0)
    comm.Recv(word, source=0)
    received = now()
    return ClockSample(received, (sent + received) // 2 - int(word[0]), received - sent)


def clock_shifts(pipeline: World, place: Place, offset: int) -> dict[int, int]:
    """Return by world rank of this pipeline what to add to its times to get this rank's, in ns (collective over it).

    `offset` is this clock minus rank 0's. Ranks of one host share a clock.
    """
    others = pipeline.collect([pipeline.host, offset])
    return {
        place.rank_of(stage): 0 if host == pipeline.host else offset - theirs
        for stage, (host, theirs) in enumerate(others)
    }


def _answer(comm: "MPI.Intracomm", peer: int) -> None:
    word = np.zeros(1, dtype=np.int64)
    comm.Send(word, dest=peer)
    while True:
        comm.Recv(word, source=peer)
        if word[0] == _ENOUGH:
            return
        word[0] = now()
        comm.Send(word, dest=peer)
