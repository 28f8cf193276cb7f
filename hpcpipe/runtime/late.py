"""A mailbox on a network that is slower than the real one: it hands a message out when its drawn delay is over.

For emulated devices. The message has really been sent and received; what is drawn is given to it, not decided here.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from hpcpipe.runtime.channel import Arrival, Memory, Neighbour
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.header import Header
from hpcpipe.runtime.mailbox import Inlet, Mail, Mailbox
from hpcpipe.runtime.mesh import Mesh


class LateMailbox(Mailbox):
    """Delays every arrival.

    Parameters
    ----------
    when
        (neighbour, header) -> when the message arrives, ns of this rank's clock.
    overtaking
        Whether a message may be handed out before one that its sender sent earlier.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        inlets: Iterable[Inlet],
        payload_bytes: int,
        memory: Memory,
        when: Callable[[Neighbour, Header], int],
        overtaking: bool,
    ) -> None:
        super().__init__(mesh, inlets=inlets, payload_bytes=payload_bytes, memory=memory)
        self._when = when
        self._overtaking = overtaking
        self._last: dict[int, int] = {}
        self._kept: list[tuple[int, int, tuple[Neighbour, Arrival]]] = []
        self._serial = 0

    def poll(self) -> Mail:
        """Return the messages whose time has come, and what has been sent since the last poll."""
        arrivals, sent = super().poll()
        for neighbour, arrival in sorted(arrivals, key=lambda pair: pair[1].header.sent):
            due = self._when(neighbour, arrival.header)
            if not self._overtaking:
                due = self._last[neighbour.peer] = max(due, self._last.get(neighbour.peer, due))
            self._serial += 1
            heappush(self._kept, (due, self._serial, (neighbour, arrival)))
        handed = []
        if self._kept:
            time = now()
            while self._kept and self._kept[0][0] <= time:
                handed.append(heappop(self._kept)[2])
        self.due = self._kept[0][0] if self._kept else None
        return handed, sent
