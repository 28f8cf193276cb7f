"""One rank's events and notes in a fixed piece of memory: written by the rank's thread, drained by one other thread.

The memory may belong to this process or be shared with a rank of the same node; nothing here opens a file, and neither
side takes a lock: the writer alone moves the heads, the drainer alone moves the tails.
"""

import platform
import struct
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from hpcpipe.events.schema import CLOCK, DECISIONS, EVENTS, STEPS, row_dtype, row_struct

EVENT_ROWS = 1 << 16
NODE_EVENT_ROWS = 1 << 14
NOTE_ROWS = 512
SEGMENTS = 4
NOTE_GROUPS = {"steps": STEPS, "clock": CLOCK, "decisions": DECISIONS}

HEAD, TAIL, NOTE_HEAD, NOTE_TAIL, BLOCKED, BLOCKED_NS, LOST, ASKED, DONE, HURRY, FAULTY, CLOSED = range(12)
_NUM_WORDS: Final = 16
_WORD_BYTES: Final = 8 * _NUM_WORDS

_EVENT_DTYPE = row_dtype(EVENTS)
_NOTE_BYTES = 8 * (1 + -(-max(row_dtype(columns).itemsize for columns in NOTE_GROUPS.values()) // 8))
_NOTE_DTYPE = np.dtype([("group", "<i8"), ("row", f"V{_NOTE_BYTES - 8}")])
_NOTE_GROUP = struct.Struct("<q")
_NOTE_STRUCTS = {name: (index, row_struct(columns)) for index, (name, columns) in enumerate(NOTE_GROUPS.items())}
_PAUSE_S = 0.0002

Fence = Callable[[], None]


def ring_bytes(event_rows: int = NODE_EVENT_ROWS) -> int:
    """Return the bytes that a ring of so many events needs."""
    return _WORD_BYTES + event_rows * _EVENT_DTYPE.itemsize + NOTE_ROWS * _NOTE_BYTES


class Ring:
    """The memory of one rank's log.

    Parameters
    ----------
    memory
        `ring_bytes(event_rows)` writable bytes, zero at the start, 8-byte aligned.
    event_rows
        Events that fit, a multiple of four.
    fence
        Makes what was written before visible to other processes first; None where the memory is this process's own
        or the processor keeps the order of writes (x86).
    """

    def __init__(
        self, memory: bytearray | memoryview, event_rows: int = EVENT_ROWS, fence: Fence | None = None
    ) -> None:
        assert event_rows % SEGMENTS == 0
        whole = memoryview(memory).cast("B")
        end = _WORD_BYTES + event_rows * _EVENT_DTYPE.itemsize
        self.words = whole[:_WORD_BYTES].cast("q")
        self.event_memory = whole[_WORD_BYTES:end]
        self.fence = None if platform.machine() in ("x86_64", "AMD64") else fence
        self._events = np.frombuffer(self.event_memory, dtype=_EVENT_DTYPE)
        self._note_memory = whole[end:]
        self._notes = np.frombuffer(whole, dtype=_NOTE_DTYPE, offset=end, count=NOTE_ROWS)

    # The writer's side.

    def wait_for_room(self, tail_word: int, needed_tail: int, wake: Callable[[], None]) -> bool:
        """Wait until the tail has come to `needed_tail`; False if it will not, because nothing can be written.

        The wait is counted: it is time that the training has lost to its log.
        """
        words = self.words
        if words[tail_word] >= needed_tail:
            return True
        if words[FAULTY]:
            return False
        began = time.monotonic_ns()
        words[BLOCKED] += 1
        words[HURRY] = 1
        try:
            while words[tail_word] < needed_tail:
                if words[FAULTY]:
                    return False
                wake()
                time.sleep(_PAUSE_S)
        finally:
            words[BLOCKED_NS] += time.monotonic_ns() - began
        return True

    def note(self, group: str, row: tuple[object, ...], wake: Callable[[], None]) -> None:
        """Keep a row of one of the small groups."""
        words = self.words
        head = words[NOTE_HEAD]
        if not self.wait_for_room(NOTE_TAIL, head + 1 - NOTE_ROWS, wake):
            words[LOST] += 1
            return
        at = head % NOTE_ROWS * _NOTE_BYTES
        index, packed = _NOTE_STRUCTS[group]
        _NOTE_GROUP.pack_into(self._note_memory, at, index)
        packed.pack_into(self._note_memory, at + _NOTE_GROUP.size, *row)
        if self.fence is not None:
            self.fence()
        words[NOTE_HEAD] = head + 1

    # The drainer's side.

    @property
    def pending(self) -> int:
        """Events and notes that wait to be drained."""
        words = self.words
        return (words[HEAD] - words[TAIL]) // _EVENT_DTYPE.itemsize + words[NOTE_HEAD] - words[NOTE_TAIL]

    def read(self) -> tuple[dict[str, np.ndarray], tuple[int, int]]:
        """Return copies of the rows that wait, by group, and the tails to set once they are written.

        Notes are read first, so the events of a step are there when its row is.
        """
        words = self.words
        first, last = words[NOTE_TAIL], words[NOTE_HEAD]
        head, tail = words[HEAD], words[TAIL]
        if self.fence is not None:
            self.fence()
        notes = self._notes[np.arange(first, last) % NOTE_ROWS]
        rows = {"events": _between(self._events, tail // _EVENT_DTYPE.itemsize, head // _EVENT_DTYPE.itemsize)}
        for index, (name, columns) in enumerate(NOTE_GROUPS.items()):
            dtype = row_dtype(columns)
            mine = notes["row"][notes["group"] == index].tobytes()
            raw = np.frombuffer(mine, dtype=np.uint8).reshape(-1, _NOTE_BYTES - 8)[:, : dtype.itemsize]
            rows[name] = np.frombuffer(raw.tobytes(), dtype=dtype)
        return rows, (head, last)

    def release(self, tails: tuple[int, int]) -> None:
        """Give the memory of drained rows back to the writer."""
        if self.fence is not None:
            self.fence()
        self.words[TAIL], self.words[NOTE_TAIL] = tails


def _between(rows: np.ndarray, first: int, last: int) -> np.ndarray:
    """Return a copy of the rows from `first` to `last`, counted from the start of time."""
    size = len(rows)
    if first == last:
        return rows[:0].copy()
    start, end = first % size, (last - 1) % size + 1
    return rows[start:end].copy() if start < end else np.concatenate([rows[start:], rows[:end]])
