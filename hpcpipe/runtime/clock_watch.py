"""Compares clocks with rank 0's again and again while the job runs, only in moments when both ranks wait anyway.

A rank asks with one small message when it is idle, rank 0 answers when it is idle; nobody waits for either. How long a
question lay unanswered is subtracted, and what remains of the delay is seen: of several trips the shortest counts.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hpcpipe.runtime.clock import ClockSample, now

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.runtime.waiting import Waiting

_TRIPS = 8
_SHORTEST_PAUSE_NS, _LONGEST_PAUSE_NS = 500_000_000, 30_000_000_000
_PAUSE_SHARE = 4
"""The pause between two comparisons is this part of the time since the start: a line needs its ends, not its middle."""
_ASK, _ANSWER = 1, 2


class ClockWatch:
    """Call `poll` when there is nothing else to do, `close` at the end (collective).

    Parameters
    ----------
    record
        Takes every comparison; never called on rank 0, whose clock is the one compared with.
    pause_ns
        Shortest and longest time between two comparisons.
    """

    def __init__(
        self,
        world: "MPI.Intracomm",
        record: Callable[[ClockSample], None],
        *,
        pause_ns: tuple[int, int] = (_SHORTEST_PAUSE_NS, _LONGEST_PAUSE_NS),
    ) -> None:
        from mpi4py import MPI

        self._comm = world.Dup()
        self._record = record
        self._shortest, self._longest = pause_ns
        self._begin = now()
        self._due = self._begin + self._shortest
        self._status = MPI.Status()
        self._question = np.zeros(1, dtype=np.int64)
        self._answer = np.zeros(2, dtype=np.int64)
        self._sends: list[tuple[MPI.Request, np.ndarray]] = []
        self._sent = 0
        self._asked = False
        self._samples: list[ClockSample] = []
        serves = self._comm.rank == 0
        source, buffer, tag = (MPI.ANY_SOURCE, self._question, _ASK) if serves else (0, self._answer, _ANSWER)
        self._receive: MPI.Prequest = self._comm.Recv_init(buffer, source, tag)
        self.poll = self._serve if serves else self._compare
        if serves:
            self._receive.Start()

    def close(self, waiting: "Waiting") -> None:
        """Answer what is still asked, then stop on all ranks together (collective)."""
        self._due = 1 << 62
        while self._asked:
            self.poll()
            waiting.idle()
        request = self._comm.Ibarrier()
        while not request.Test():
            self.poll()
            waiting.idle()
        waiting.busy()
        if self._comm.rank == 0:
            self._receive.Cancel()
            self._receive.Wait()
        self._receive.Free()
        for send, _ in self._sends:
            send.Wait()
        self._comm.Free()

    def _serve(self) -> None:
        """Answer one question: when it was noticed, and when the answer left."""
        if not self._receive.Test(self._status):
            return
        noticed = now()
        peer = self._status.source
        self._sends = [(request, words) for request, words in self._sends if not request.Test()]
        words = np.array([noticed, 0], dtype=np.int64)
        words[1] = now()
        self._sends.append((self._comm.Isend(words, peer, _ANSWER), words))
        self._receive.Start()

    def _compare(self) -> None:
        if not self._asked:
            if now() >= self._due:
                self._ask()
            return
        if not self._receive.Test():
            return
        received = now()
        self._asked = False
        noticed, left = self._answer.tolist()
        offset = (self._sent + received - noticed - left) // 2
        self._samples.append(ClockSample(received, offset, (received - self._sent) - (left - noticed)))
        if len(self._samples) < _TRIPS and self._due < 1 << 62:
            self._ask()
            return
        self._record(min(self._samples, key=lambda sample: sample.round_trip))
        self._samples = []
        if self._due < 1 << 62:
            pause = (received - self._begin) // _PAUSE_SHARE
            self._due = received + min(max(pause, self._shortest), self._longest)

    def _ask(self) -> None:
        self._sends = [(request, words) for request, words in self._sends if not request.Test()]
        self._receive.Start()
        self._asked = True
        words = np.zeros(1, dtype=np.int64)
        self._sent = now()
        self._sends.append((self._comm.Isend(words, 0, _ASK), words))
