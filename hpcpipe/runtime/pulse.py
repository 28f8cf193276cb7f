"""Lets messages move while this rank computes in the thread that otherwise looks after them.

Some MPI libraries move data only inside their calls: a message too large to be sent at once would wait for the end of a
task. A thread calls MPI now and then while a task runs; it knows neither what is sent nor who computes.
"""

import threading
import time

from mpi4py import MPI

PERIOD_S = 0.5e-3
"""At 1 Gbit/s some 60 kB arrive between two calls, which sockets hold."""


class Pulse:
    """Enter it around what keeps the thread busy; `close` it at the end.

    Where MPI may be called from one thread only it does nothing. The thread sleeps between its calls and looks at a
    flag, so that entering costs less than a microsecond.

    Parameters
    ----------
    comm
        Any communicator with other ranks; one of this rank alone would not make MPI look at the others' messages.
    """

    def __init__(self, comm: MPI.Intracomm, *, period_s: float = PERIOD_S) -> None:
        self._comm = comm
        self._period_s = period_s
        self._busy = self._closed = False
        self.calls = 0
        self._thread: threading.Thread | None = None
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._run, name="hpcpipe-pulse", daemon=True)
            self._thread.start()

    def __enter__(self) -> None:
        """Let messages move from now on."""
        self._busy = True

    def __exit__(self, *_: object) -> None:
        """Leave them to the thread that is free again."""
        self._busy = False

    def close(self) -> None:
        """End the thread; before MPI ends."""
        self._closed = True
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            time.sleep(self._period_s)
            if self._busy:
                self.calls += 1
                self._comm.Iprobe()  # whatever it finds stays: the call only lets MPI do what is due
