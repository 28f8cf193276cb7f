"""Note the order in which the ranks of this host die: the first is the culprit, the launcher kills the others.

It must not know what the ranks do; until they introduce themselves it finds them among the launcher's descendants.
"""

import os
import select
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcpipe.cluster.environment import world
from hpcpipe.cluster.verdict import read_ranks


class DeathWatch(threading.Thread):
    """A thread that fills `deaths` with ranks, `tied` with the first ones if they were found dead at the same moment.

    Linux 5.3 or newer; elsewhere both stay empty.

    Parameters
    ----------
    run_dir
        Where the ranks will write `ranks.json`.
    launcher
        The process that starts them.
    """

    LOOK_EVERY_S = 0.02

    def __init__(self, run_dir: Path, launcher: int) -> None:
        super().__init__(name="hpcpipe-deaths", daemon=True)
        self.deaths: list[int] = []
        self.tied: list[int] = []
        self._run_dir = run_dir
        self._launcher = launcher
        self._poll = select.poll()
        self._watched: dict[int, int] = {}
        self._seen: set[int] = set()
        self._wake, self._waker = os.pipe()
        self._poll.register(self._wake, select.POLLIN)

    def close(self) -> None:
        """Stop watching."""
        os.write(self._waker, b"x")
        self.join()
        for descriptor in (self._wake, self._waker, *self._watched):
            os.close(descriptor)

    def run(self) -> None:
        """Find the ranks, and wait for their deaths."""
        introduced = False
        while not (introduced and not self._watched):
            if not introduced:
                entries = read_ranks(self._run_dir)
                introduced = bool(entries)
                for rank, pid in list(_of_this_host(entries) if introduced else ranks_below(self._launcher)):
                    self._watch(rank, pid)
            ready = self._poll.poll(None if introduced else self.LOOK_EVERY_S * 1e3)
            if not self.deaths and len(ready) > 1:  # the launcher was faster with the others than this thread
                self.tied = [self._watched[descriptor] for descriptor, _ in ready if descriptor in self._watched]
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    return
                self.deaths.append(self._watched.pop(descriptor))
                self._poll.unregister(descriptor)
                os.close(descriptor)

    def _watch(self, rank: int, pid: int) -> None:
        if rank in self._seen:
            return
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self.deaths.append(rank)
        except (AttributeError, OSError):
            return
        else:
            self._watched[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)
        self._seen.add(rank)


def _of_this_host(entries: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    here = socket.gethostname().partition(".")[0]
    for entry in entries:
        pid, rank, host = entry.get("pid"), entry.get("rank"), str(entry.get("host")).partition(".")[0]
        if host == here and isinstance(pid, int) and isinstance(rank, int):
            yield rank, pid


def ranks_below(pid: int) -> Iterator[tuple[int, int]]:
    """Yield rank and process id of each descendant of a process to which a launcher has given a rank (Linux)."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text(encoding="ascii").split()):
                place = None
                with suppress(OSError):
                    words = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                    place = world(dict(os.fsdecode(word).partition("=")[::2] for word in words if word))
                if place is None:
                    yield from ranks_below(child)
                else:  # what it starts inherits its variables, and is no rank
                    yield place.rank, child
