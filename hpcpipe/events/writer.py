"""One rank's event log as its rank sees it: every event is packed into a ring, and a thread elsewhere writes the file.

It knows the format and the ring; recording an event does no input or output and waits only when the ring is full.
"""

import time
from collections.abc import Sequence
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hpcpipe.events.collector import Collector
from hpcpipe.events.header import LogHeader
from hpcpipe.events.ring import (
    ASKED,
    CLOSED,
    DONE,
    EVENT_ROWS,
    FAULTY,
    HEAD,
    HURRY,
    LOST,
    NODE_EVENT_ROWS,
    SEGMENTS,
    TAIL,
    Fence,
    Ring,
    ring_bytes,
)
from hpcpipe.events.schema import EVENTS, row_struct

_ROW = row_struct(EVENTS)
_MOST_COUNT = 2**15 - 1
_PAUSE_S = 0.0005
_PATIENCE_S = 60.0


class EventWriter:
    """Writes the log of one rank.

    The file can be read while it is written and after its writer was killed, up to the last flush. `close` packs it.
    Memory is bounded: when `event_rows` events wait for the file, the next one waits, which is counted; if nothing can
    be written then, because of a fault, rows are left out, which is counted too.

    Parameters
    ----------
    path
        A file that does not exist yet.
    compression
        "gzip", "lzf" or "none", for the packed file.
    event_rows
        Events that the ring holds, a multiple of four.

    Raises
    ------
    OSError
        The file exists or cannot be written.
    ValueError
        An unknown compression.
    """

    def __init__(
        self, path: Path | str, header: LogHeader, compression: str = "gzip", *, event_rows: int = EVENT_ROWS
    ) -> None:
        ring = Ring(bytearray(ring_bytes(event_rows)), event_rows)
        self._set_up(ring, Collector(Path(path), [header], [ring], compression, shared=False), event_rows)
        self.path = Path(path)

    @classmethod
    def on_node(
        cls,
        path: Path | str,
        headers: Sequence[LogHeader],
        memories: Sequence[memoryview],
        *,
        own: int,
        compression: str = "gzip",
        event_rows: int = NODE_EVENT_ROWS,
        fence: Fence | None = None,
    ) -> Self:
        """Return the writer of one of several ranks that have one file together.

        Parameters
        ----------
        headers, memories
            Of every rank of the node, in the same order: who it is, and `ring_bytes(event_rows)` shared zero bytes.
        own
            This rank's place in both; the rank at place 0 writes the file.
        fence
            Makes memory consistent between the processes.

        Raises
        ------
        OSError, ValueError
            As for a file of one rank; at place 0 only.
        """
        writer = cls.__new__(cls)
        collector = None
        rings = [Ring(memory, event_rows, fence) for memory in (memories if own == 0 else [memories[own]])]
        if own == 0:
            collector = Collector(Path(path), headers, rings, compression, shared=True)
        writer._set_up(rings[0], collector, event_rows)
        writer.path = Path(path)
        return writer

    def _set_up(self, ring: Ring, collector: Collector | None, event_rows: int) -> None:
        self._ring: Ring | None = ring
        self._collector = collector
        self._wake = (lambda: None) if collector is None else collector.wake
        self._pack = _ROW.pack_into
        self._buffer: memoryview | bytearray = ring.event_memory
        self._words: Any = ring.words
        self._fence = ring.fence
        self._at = 0
        self._lap = 0
        """Bytes of all rounds before this one: the head is `_lap + _at`."""
        self._segment = event_rows // SEGMENTS * _ROW.size
        self._end = self._segment
        self._size = event_rows * _ROW.size

    @property
    def fault(self) -> OSError | None:
        """What is wrong with the file, None if nothing is or another rank of the node writes it."""
        return None if self._collector is None else self._collector.fault

    @property
    def lost(self) -> int:
        """Rows that were left out because they could not be written."""
        return int(self._words[LOST])

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Keep one event (columns: schema.py; times in ns). Waits only when the ring is full."""
        at = self._at
        if at == self._end:
            at = self._next_segment()
            if at < 0:
                return
        if ready_count > _MOST_COUNT:  # noqa: PLR1730 - min() is a call on the hot path
            ready_count = _MOST_COUNT
        self._pack(
            self._buffer, at, step, microbatch, kind, chunk, t_ready, t_start, t_end,
            wait_class, peer, nbytes, rank_in_hint, ready_count, flags,
        )  # fmt: skip
        self._at = at = at + _ROW.size
        if self._fence is not None:
            self._fence()
        self._words[HEAD] = self._lap + at

    def step(
        self,
        step: int,
        t_begin: int,
        t_end: int,
        loss: float = nan,
        grad_norm: float = nan,
        tokens: int = 0,
        hint: str = "bf",
        k: int = 0,
        bucket_bytes: int = 0,
        peak_bytes: int = 0,
    ) -> None:
        """Keep the row of a finished step."""
        row = (step, t_begin, t_end, loss, grad_norm, tokens, _fit(hint, 64), k, bucket_bytes, peak_bytes)
        self._note("steps", row)

    def clock(self, t_local: int, offset: int, round_trip: int) -> None:
        """Keep a comparison with rank 0's clock; `offset` is this rank's clock minus rank 0's."""
        self._note("clock", (t_local, offset, round_trip))

    def decision(self, step: int, what: str, why: str) -> None:
        """Keep what was decided for the steps from `step` on; long words are cut to the columns' lengths."""
        self._note("decisions", (step, _fit(what, 64), _fit(why, 256)))

    def flush(self, *, wait: bool = True, patience_s: float = _PATIENCE_S) -> None:
        """Have everything kept so far written, and then the row counts that a reader may trust.

        Parameters
        ----------
        wait
            Come back when it is done. Without it the file has the rows within 2 s, and a fault is in `fault`.
        patience_s
            How long to wait at most.

        Raises
        ------
        OSError
            With `wait`: it cannot be written, or not in time. Nothing is lost: the next flush tries the same rows.
        """
        if self._ring is None:
            return
        words = self._words
        number = words[ASKED] = words[ASKED] + 1
        if not wait:
            self._wake()
            return
        words[HURRY] = 1
        self._wake()
        give_up = time.monotonic() + patience_s
        while words[DONE] < number:
            if time.monotonic() > give_up:
                raise OSError(f"cannot write the event log {self.path}: nothing was written for {patience_s:g} s")
            time.sleep(_PAUSE_S)
        if words[FAULTY]:
            raise self.fault or OSError(f"cannot write the event log {self.path}: the rank that writes it cannot")

    def close(self, *, patience_s: float = _PATIENCE_S) -> None:
        """Flush, then put the packed file, marked complete, in the log's place. May be called twice.

        On a node the other ranks close first and wait up to `patience_s` for their rows to be written; whoever has not
        closed by then is marked in the file as not closed.

        Raises
        ------
        OSError
            The file cannot be written or packed; what was flushed stays readable.
        """
        ring, collector = self._ring, self._collector
        if ring is None:
            return
        ring.words[CLOSED] = 1
        try:
            if collector is None:
                self.flush(patience_s=patience_s)
            else:
                collector.close()
        finally:
            self._ring = None
            self._words, self._buffer, self._fence = list(ring.words), bytearray(self._size), None  # let go of memory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_segment(self) -> int:
        """Go on to the next quarter of the ring once it is free; return where the next row goes, -1 for nowhere."""
        ring, words = self._ring, self._words
        if ring is None:
            return -1
        words[ASKED] += 1
        self._wake()
        if not ring.wait_for_room(TAIL, self._lap + self._at + self._segment - self._size, self._wake):
            words[LOST] += 1
            return -1
        if self._at == self._size:
            self._lap += self._size
            self._at = 0
        self._end = self._at + self._segment
        return self._at

    def _note(self, group: str, row: tuple[Any, ...]) -> None:
        if self._ring is not None:
            self._ring.note(group, row, self._wake)


def _fit(text: str, size: int) -> bytes:
    return text.encode()[:size].decode(errors="ignore").encode()
