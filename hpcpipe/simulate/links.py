"""Messages in virtual time: latency, bandwidth and whether messages of one link may overtake each other.

Each direction of each edge is a link of its own unless both share one; messages of a link use it one after the other.
"""

from dataclasses import dataclass, field

from hpcpipe.plan import Task
from hpcpipe.plan.delays import Delay, LognormalDelay


@dataclass(frozen=True, slots=True)
class Link:
    """What all links are like.

    `latency_ns` is added to each message, times exp(sigma z) where `sigma` > 0; a message of `num_bytes` occupies the
    link for num_bytes · ns_per_byte. Without `overtaking` messages arrive in the order in which they were sent. Without
    `duplex` the two directions between two stages share one link. `delay` (ns) stands in for the latency, if given.
    """

    latency_ns: float = 0.0
    sigma: float = 0.0
    overtaking: bool = True
    num_bytes: int = 0
    ns_per_byte: float = 0.0
    duplex: bool = True
    delay: Delay | None = None

    @property
    def delays(self) -> Delay:
        """Return what is added to each message."""
        return self.delay or LognormalDelay(self.latency_ns, self.sigma, self.overtaking)


@dataclass(slots=True)
class Network:
    """The links of one step; it remembers what is on them."""

    link: Link
    seed: int = 0
    step: int = 0
    _free: dict[tuple[int, int], int] = field(default_factory=dict)
    _last: dict[tuple[int, int], int] = field(default_factory=dict)
    _delay: Delay = field(init=False)

    def __post_init__(self) -> None:
        """Ask once what all messages have in common."""
        self._delay = self.link.delays

    def arrival(self, source: int, target: int, task: Task, now: int) -> int:
        """Return when a message sent now from stage to stage arrives (ns); `task` is what its output feeds."""
        edge = source, target
        wire = edge if self.link.duplex else (min(edge), max(edge))
        begin = max(now, self._free.get(wire, now))
        self._free[wire] = end = begin + round(self.link.num_bytes * self.link.ns_per_byte)
        delay = self._delay.of(end, seed=self.seed, step=self.step, source=source, target=target, task=task)
        arrival = end + round(delay)
        if not self._delay.overtaking:
            arrival = self._last[edge] = max(arrival, self._last.get(edge, 0))
        return arrival
