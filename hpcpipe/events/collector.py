"""The thread that carries rows from the rings of one or more ranks to their file, and lives through a file's faults.

It alone touches the file. It knows nothing of what the rows mean.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hpcpipe.events.header import LogHeader
from hpcpipe.events.log_file import LogFile
from hpcpipe.events.ring import ASKED, BLOCKED, BLOCKED_NS, CLOSED, DONE, FAULTY, HURRY, LOST, Ring

_SHARE = 1 / 200
"""Of the time, for writes that nobody waits for: HDF5 holds the interpreter, which the dispatching thread needs too."""
_ALLOWANCE_S = 0.2
"""What writes may take beyond their share: the first steps of a run are in its file soon, should it fail early."""
_SHORTEST_PAUSE_S, _LONGEST_REST_S = 0.05, 2.0
_TICK_S = 0.02
_LONGEST_PAUSE_S = 0.1


class Collector:
    """Writes the rows of `rings` to `path` in the background.

    Parameters
    ----------
    headers
        One of each ring's rank; more than one makes the layout of a node, with a column `rank`.
    shared
        The rings are filled by other processes too, which cannot wake this thread: it looks by itself.

    Raises
    ------
    OSError
        The file exists or cannot be made.
    """

    def __init__(
        self, path: Path, headers: Sequence[LogHeader], rings: Sequence[Ring], compression: str, *, shared: bool
    ) -> None:
        self.fault: OSError | None = None
        self._rings = list(rings)
        self._shared = shared
        self._rest = _SHORTEST_PAUSE_S
        self._begun, self._taken = time.monotonic(), 0.0
        self._wake = threading.Event()
        self._stop = False
        self._file: LogFile | None = None
        try:
            self._file = LogFile(path, headers, compression, node=shared)
        except BaseException:
            for ring in self._rings:
                ring.words[FAULTY] = 1
            raise
        self._thread = threading.Thread(target=self._run, name="hpcpipe-events", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Let the thread look now."""
        self._wake.set()

    def close(self) -> None:
        """Write what is there, finish the file and end the thread.

        Raises
        ------
        OSError
            Something could not be written, or the file could not be finished.
        """
        self._stop = True
        self._wake.set()
        self._thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        last = 0.0
        while not self._stop:
            self._wake.wait(self._pause(last))
            self._wake.clear()
            if self._due(last):
                self._drain()
                last = time.monotonic()
        self._drain()
        for ring in self._rings:
            ring.words[LOST] += ring.pending  # they were tried for the last time
        complete = not any(ring.pending for ring in self._rings)
        assert self._file is not None
        try:
            self._file.finish([bool(ring.words[CLOSED]) for ring in self._rings])
        except OSError as error:
            self.fault = error if complete or self.fault is None else self.fault
        else:
            if complete:
                self.fault = None  # even a file that had vanished is there again, and whole

    def _pause(self, last: float) -> float | None:
        if self._shared:
            return _TICK_S
        if any(ring.words[ASKED] > ring.words[DONE] for ring in self._rings):
            return max(0.0, last + self._rest - time.monotonic())
        return None

    def _due(self, last: float) -> bool:
        if any(ring.words[HURRY] for ring in self._rings):
            return True
        waited = time.monotonic() - last
        if any(ring.words[ASKED] > ring.words[DONE] for ring in self._rings):
            return waited >= self._rest
        return (
            self._shared and waited >= max(self._rest, _LONGEST_PAUSE_S) and any(ring.pending for ring in self._rings)
        )

    def _drain(self) -> None:
        """Write all rows that wait; after a fault the same rows are tried again the next time."""
        assert self._file is not None
        began = time.thread_time()
        hurried = [ring for ring in self._rings if ring.words[HURRY]]
        for ring in hurried:
            ring.words[HURRY] = 0
        asked = [ring.words[ASKED] for ring in self._rings]
        parts = [ring.read() for ring in self._rings]
        counters = [
            {"blocked": ring.words[BLOCKED], "blocked_ns": ring.words[BLOCKED_NS], "lost": ring.words[LOST]}
            for ring in self._rings
        ]
        written = False
        try:
            held = self._file.append([rows for rows, _ in parts], counters)
            self._taken += max(held, time.thread_time() - began)
            ahead = (self._taken - _ALLOWANCE_S) / _SHARE - (time.monotonic() - self._begun)
            self._rest = min(max(_SHORTEST_PAUSE_S, ahead), _LONGEST_REST_S)
        except OSError as error:
            self.fault = error
        except Exception as error:  # whatever it is, nobody may wait for this thread for ever
            self.fault = OSError(f"the event log {self._file.path} cannot be written: {error!r}")
        else:
            self.fault = self._file.vanished()
            written = True
            for ring, (_, tails) in zip(self._rings, parts, strict=True):
                ring.release(tails)
        for ring, number in zip(self._rings, asked, strict=True):
            ring.words[FAULTY] = int(not written)
            ring.words[DONE] = number
