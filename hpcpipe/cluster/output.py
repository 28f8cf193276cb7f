"""Pass on what the ranks write as it comes, but keep to ourselves what the launcher says about their end.

Hydra puts a banner of a dozen lines, with a process id that need not be the culprit's, into the ranks' standard output.
"""

import os
import re
import threading
from contextlib import suppress

RULE = re.compile(rb"={70,}\n")
BANNER = (
    b"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    b"=   PID ",
    b"=   KILLED BY SIGNAL: ",
    b"=   RANK ",
    b"=   EXIT CODE: ",
    b"=   EXIT STRING: ",
    b"=   CLEANING UP REMAINING PROCESSES",
    b"=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES",
    b"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: ",
    b"This typically refers to a problem with your application.",
    b"Please see the FAQ page for debugging suggestions",
)
OWN_LINE = re.compile(rb"\[mpiexec@[^\]]*\] (Exit codes: |Sending Ctrl-C|Press Ctrl-C)|Abort\(130\) on node \d+ ")
"""Hydra's own lines, and MPICH's about a rank that Ctrl-C has ended: who pressed it knows."""
OWN_LINE_STARTS = (b"[mpiexec@", b"Abort(130) on node ")
TAIL_BYTES = 64 * 1024


class BannerFilter:
    """Separates the launcher's own lines from the ranks' bytes, without holding back what cannot be the launcher's."""

    def __init__(self) -> None:
        self.said = b""
        self._held = b""
        self._line_start = True

    def feed(self, data: bytes) -> bytes:
        """Return what to pass on now."""
        passed = bytearray()
        rest = self._held + data
        if data.startswith(OWN_LINE_STARTS):  # a bar ends no line, and these words come by themselves
            self._line_start = True
        self._held = b""
        while rest:
            line, end, after = rest.partition(b"\n")
            line += end
            if not self._line_start:
                passed += line
            elif not end:
                if self._may_become_banner(line):
                    self._held = line
                    return bytes(passed)
                passed += line
            elif RULE.fullmatch(line) and b"BAD TERMINATION" not in self.said:
                following = after[: len(BANNER[0])]
                if BANNER[0].startswith(following) and len(following) < len(BANNER[0]):
                    self._held = rest
                    return bytes(passed)
                if following == BANNER[0]:
                    self.said += line
                else:
                    passed += line
            elif self._is_banner(line):
                self.said += line
            else:
                passed += line
            self._line_start = bool(end)
            rest = after
        return bytes(passed)

    def close(self) -> bytes:
        """Return what was held back and turned out to be the ranks'."""
        held, self._held = self._held, b""
        return held

    def _is_banner(self, line: bytes) -> bool:
        if OWN_LINE.match(line):
            return True
        if line.startswith(BANNER[0]):
            return True
        return b"BAD TERMINATION" in self.said and (bool(RULE.fullmatch(line)) or line.startswith(BANNER[1:]))

    def _may_become_banner(self, piece: bytes) -> bool:
        starts = (BANNER[0], *OWN_LINE_STARTS, b"=" * 70, *(BANNER[1:] if b"BAD TERMINATION" in self.said else ()))
        return any(start.startswith(piece) or piece.startswith(start) for start in starts)


class Pump(threading.Thread):
    """Copies a pipe to one of our descriptors byte by byte as it comes, and remembers the end of what came."""

    def __init__(self, source: int, target: int, banner: BannerFilter | None) -> None:
        super().__init__(name=f"hpcpipe-output-{target}", daemon=True)
        self.tail = b""
        self._source = source
        self._target = target
        self._banner = banner

    @property
    def said(self) -> str:
        """What the launcher said on this pipe, and the end of what the ranks said."""
        own = self._banner.said if self._banner else b""
        return (own + self.tail).decode(errors="replace")

    def run(self) -> None:
        """Copy until the pipe is closed at its other end; whoever reads us may have gone before."""
        while data := self._read():
            self._pass_on(self._banner.feed(data) if self._banner else data)
        if self._banner:
            self._pass_on(self._banner.close())

    def _read(self) -> bytes:
        try:
            return os.read(self._source, 65536)
        except OSError:
            return b""

    def _pass_on(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        with suppress(OSError):
            while data:
                data = data[os.write(self._target, data) :]
