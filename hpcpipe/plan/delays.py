"""How long messages take beyond what the wire needs: small models, each a pure function of the seed and the message.

The simulator adds them in virtual time, an emulated device holds real messages back by them. Any unit of time.
"""

from dataclasses import dataclass
from math import exp
from typing import Protocol

from hpcpipe.plan.draws import normal
from hpcpipe.plan.seeds import derive_seed
from hpcpipe.plan.task import Task


class Delay(Protocol):
    """Delays messages; without `overtaking` those of one link arrive in the order in which they were sent."""

    @property
    def overtaking(self) -> bool:
        """Whether a message may arrive before one that was sent earlier on the same link."""

    def of(self, sent: float, *, seed: int, step: int, source: int, target: int, task: Task) -> float:
        """Return the delay of a message between two stages; `task` is what it feeds, `sent` when it left."""


@dataclass(frozen=True, slots=True)
class LognormalDelay:
    """`base` times exp(sigma z); the same for every message where sigma is 0."""

    base: float
    sigma: float = 0.0
    overtaking: bool = True

    def of(self, sent: float, *, seed: int, step: int, source: int, target: int, task: Task) -> float:
        """Return the delay."""
        del sent
        if not self.sigma:
            return self.base
        return self.base * exp(self.sigma * normal(seed, step, source, target, *task))


@dataclass(frozen=True, slots=True)
class Bursts:
    """Somebody else's traffic: during `length` of every `every` a message takes `factor` times `base`."""

    base: float
    every: float
    length: float
    factor: float
    overtaking: bool = False

    def of(self, sent: float, *, seed: int, step: int, source: int, target: int, task: Task) -> float:
        """Return the delay."""
        del seed, step, source, target, task
        return self.base * (self.factor if sent % self.every < self.length else 1.0)


@dataclass(frozen=True, slots=True)
class Slowest:
    """The longest delay of a message's copies, one for each of `count` tensor-parallel slices: all need theirs."""

    delay: Delay
    count: int

    @property
    def overtaking(self) -> bool:
        """Whether messages may overtake each other."""
        return self.delay.overtaking

    def of(self, sent: float, *, seed: int, step: int, source: int, target: int, task: Task) -> float:
        """Return the delay."""
        return max(
            self.delay.of(sent, seed=seed_of_slice(seed, s), step=step, source=source, target=target, task=task)
            for s in range(self.count)
        )


def seed_of_slice(seed: int, number: int) -> int:
    """Return the seed of a tensor-parallel slice's draws; the first one draws as if it were alone."""
    return seed if number == 0 else derive_seed(seed, "slice", number)
