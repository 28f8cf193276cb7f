"""Messages in virtual time: latency, bandwidth and whether messages of one link may overtake each other.

Each direction of each edge is a link of its own (full duplex); what is sent shares its bandwidth one after the other.
"""

from dataclasses import dataclass, field

from hpcpipe.plan import Task
from hpcpipe.plan.delays import LognormalDelay


@dataclass(frozen=True, slots=True)
class Link:
    """What all links are like.

    `latency_ns` is added to each message, times exp(sigma z) where `sigma` > 0; a message of `num_bytes` occupies the
    link for num_bytes · ns_per_byte. Without `overtaking` messages arrive in the order in which they were sent.
    """

    latency_ns: float = 0.0
    sigma: float = 0.0
    overtaking: bool = True
    num_bytes: int = 0
    ns_per_byte: float = 0.0


@dataclass(slots=True)
class Network:
    """The links of one step; it remembers what is on them."""

    link: Link
    seed: int = 0
    step: int = 0
    _free: dict[tuple[int, int], int] = field(default_factory=dict)
    _last: dict[tuple[int, int], int] = field(default_factory=dict)

    def arrival(self, source: int, target: int, task: Task, now: int) -> int:
        """Return when a message sent now from stage to stage arrives (ns); `task` is what its output feeds."""
        edge = source, target
        begin = max(now, self._free.get(edge, now))
        self._free[edge] = end = begin + round(self.link.num_bytes * self.link.ns_per_byte)
        latency = LognormalDelay(self.link.latency_ns, self.link.sigma)
        arrival = end + round(latency.of(end, seed=self.seed, step=self.step, source=source, target=target, task=task))
        if not self.link.overtaking:
            arrival = self._last[edge] = max(arrival, self._last.get(edge, 0))
        return arrival
