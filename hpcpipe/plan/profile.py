"""What is known of a pipeline's times: durations of tasks, delays of messages, and how much both vary.

It must not know who measured it; online.py is how a stage measures its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from hpcpipe.plan.task import Kind, Task

KINDS = (Kind.F, Kind.B, Kind.W)


@dataclass(frozen=True, slots=True)
class Profile:
    """Usual times of a pipeline whose backward is split; the same on every rank, or their orders would not fit.

    Parameters
    ----------
    durations
        ns by stage, kind (F, B, W) and chunk; each at least 1.
    delay
        ns that a message is usually on its way.
    factors
        Cost of each micro-batch relative to the usual one, where known before the step; None if all are alike.
    spread
        Standard deviation of a task's duration relative to its mean, on the stage where it is largest.
    delay_rms
        Root mean square of a message's delay (ns); None if every message takes `delay`.

    Raises
    ------
    ValueError
        Stages with different kinds or numbers of chunks, or a duration below 1 ns.
    """

    durations: tuple[tuple[tuple[int, ...], ...], ...]
    delay: int = 0
    factors: tuple[float, ...] | None = None
    spread: float = 0.0
    delay_rms: float | None = None

    def __post_init__(self) -> None:
        """Refuse a table with holes or tasks that take no time."""
        shapes = {tuple(map(len, stage)) for stage in self.durations}
        if len(shapes) != 1 or len(set(next(iter(shapes)))) != 1 or len(self.durations[0]) != len(KINDS):
            raise ValueError("a profile needs F, B and W of every chunk, and as many chunks on every stage")
        for number, stage in enumerate(self.durations):
            for kind, chunks in zip(KINDS, stage, strict=True):
                if min(chunks, default=0) < 1:
                    raise ValueError(
                        f"stage {number}: {kind.name} takes {min(chunks, default=0)} ns, at least 1 is needed"
                    )

    @classmethod
    def uniform(cls, *, stages: int, chunks: int = 1, ns: int = 1000, delay: int = 0) -> "Profile":
        """Return the profile in which F, B and W of a whole stage take `ns` each, split evenly over its chunks."""
        return cls((((max(1, ns // chunks),) * chunks,) * len(KINDS),) * stages, delay)

    @property
    def stages(self) -> int:
        """Return the number of stages."""
        return len(self.durations)

    @property
    def chunks(self) -> int:
        """Return the number of chunks of a stage."""
        return len(self.durations[0][0])

    @property
    def forward(self) -> float:
        """Return the ns of a forward through all chunks of a stage, mean over the stages."""
        return sum(sum(stage[Kind.F]) for stage in self.durations) / len(self.durations)

    @property
    def delay_deviation(self) -> float:
        """Return the standard deviation of a message's delay (ns)."""
        return 0.0 if self.delay_rms is None else sqrt(max(0.0, self.delay_rms**2 - self.delay**2))

    def duration(self, stage: int, task: Task) -> int:
        """Return the expected ns of an F, B or W."""
        usual = self.durations[stage][task.kind][task.chunk]
        return usual if self.factors is None else max(1, round(usual * self.factors[task.microbatch]))

    def of_microbatch(self, stage: int) -> int:
        """Return the ns that a stage works on one usual micro-batch."""
        return sum(map(sum, self.durations[stage]))


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What one stage measured: one row of the profile. Twelve numbers or so, small enough to exchange every step.

    `durations` are ns by kind and chunk, `delay` and `delay_rms` those of the messages that arrived here (ns; 0 where
    `messages` is 0).
    """

    durations: tuple[tuple[float, ...], ...]
    spread: float
    messages: int
    delay: float
    delay_rms: float


def gather(rows: Sequence[StageTimes], *, factors: Sequence[float] | None = None) -> Profile:
    """Return the profile of a pipeline from the row of each stage, in the order of stages.

    Every stage's row must be the same on all ranks (one all-gather), so that all make the same orders.
    """
    messages = sum(row.messages for row in rows) or 1
    mean = sum(row.delay * row.messages for row in rows) / messages
    square = sum(row.delay_rms**2 * row.messages for row in rows) / messages
    return Profile(
        durations=tuple(tuple(tuple(max(1, round(ns)) for ns in kind) for kind in row.durations) for row in rows),
        delay=round(mean),
        factors=None if factors is None else tuple(factors),
        spread=max(row.spread for row in rows),
        delay_rms=sqrt(square),
    )
