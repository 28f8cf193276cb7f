"""Some steps one after the other without a barrier between them, as a run makes them, and what they cost.

It must not know how schedules are compared or shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Protocol

from hpcpipe.plan import USEFUL, Kind, Schedule, Task, TimeClass
from hpcpipe.simulate.compiled import CompiledSchedule, NotCompiledError
from hpcpipe.simulate.compiled_step import simulate_compiled
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.step import Arrival, Row, SimulatedStep, simulate_step
from hpcpipe.simulate.times import RecordedMessages, Times


class Messages(Protocol):
    """How long messages take."""

    def of_step(self, step: int) -> Arrival:
        """Return the arrivals of one step."""


@dataclass(frozen=True, slots=True)
class LinkMessages:
    """Messages over links that are all alike."""

    link: Link
    seed: int = 0

    def of_step(self, step: int) -> Arrival:
        """Return the arrivals over links that are idle at first."""
        return Network(self.link, self.seed, step).arrival


@dataclass(frozen=True, slots=True)
class MessagesAsRecorded:
    """Messages that take what a run recorded."""

    recorded: RecordedMessages

    def of_step(self, step: int) -> Arrival:
        """Return the arrivals of a recorded step."""
        return partial(self.recorded.arrival, step)


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that decides what a run would cost; see `simulate_step` for the last ones.

    `norm` says whether updates wait for a norm, whose time is that of the NORM of `times`.
    """

    schedule: Schedule
    times: Times
    messages: Messages
    buckets: Sequence[int] | None = None
    replicated: bool = False
    agreement_ns: int = 0
    phased: bool = False
    norm: bool = False
    gathers_early: bool = False

    def norm_ns(self, step: int) -> int | None:
        """Return what a step's norm takes once the last stage has come to it; None where there is none."""
        return self.times.duration(step, 0, Task(Kind.NORM, 0)) if self.norm else None


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Steps that followed each other; a step's window ends when its last stage is done (ns)."""

    numbers: list[int]
    steps: list[SimulatedStep]

    @property
    def edges(self) -> list[int]:
        """Return the begin of the first window and the end of each."""
        return [min(self.steps[0].begin), *(max(step.end) for step in self.steps)]

    @property
    def window_ns(self) -> list[int]:
        """Return the length of each step's window."""
        edges = self.edges
        return [after - before for before, after in pairwise(edges)]

    @property
    def step_ns(self) -> int:
        """Return the median length of a window."""
        return round(median(self.window_ns))

    def rows(self, stage: int) -> list[Row]:
        """Return all that happened on a stage without a gap; what it waits after its own step drains that step."""
        rows: list[Row] = []
        for number, step in enumerate(self.steps):
            window = max(self.steps[number - 1].end) if number else step.begin[stage]
            for row in step.rows[stage]:
                if row.cause is TimeClass.DRAIN and number < len(self.steps) - 1:
                    continue
                if row.cause is TimeClass.WARMUP and row.start < window:
                    cut = min(row.end, window)
                    rows.append(row._replace(cause=TimeClass.DRAIN, end=cut))
                    row = row._replace(start=cut)  # noqa: PLW2901
                if row.end > row.start:
                    rows.append(row)
        return rows

    def classes(self, stage: int) -> dict[TimeClass, int]:
        """Return the ns of each class on a stage; they sum to the wall time of all windows."""
        sums: dict[TimeClass, int] = {}
        for row in self.rows(stage):
            sums[row.cause] = sums.get(row.cause, 0) + row.end - row.start
        return sums

    @property
    def wall_ns(self) -> int:
        """Return the time of all windows together."""
        return self.edges[-1] - self.edges[0]

    @property
    def bubble_ratio(self) -> float:
        """Return 1 - useful / wall over all stages."""
        stages = range(len(self.steps[0].rows))
        useful = sum(ns for stage in stages for cause, ns in self.classes(stage).items() if cause in USEFUL)
        return 1.0 - useful / (self.wall_ns * len(stages))

    @property
    def peak_in_flight(self) -> list[int]:
        """Return the most forwards of a chunk without their backward, by stage."""
        return [max(peaks) for peaks in zip(*(step.peak_in_flight for step in self.steps), strict=True)]

    @property
    def peak_stash(self) -> list[int]:
        """Return the most forwards of a chunk without their weight gradient, by stage."""
        return [max(peaks) for peaks in zip(*(step.peak_stash for step in self.steps), strict=True)]


def _fastest(scenario: Scenario) -> Callable[..., SimulatedStep]:
    """Return the compiled simulator where it knows all that is asked; both give the same steps."""
    if scenario.gathers_early:
        return partial(simulate_step, gathers_early=True)
    try:
        CompiledSchedule(scenario.schedule)
    except NotCompiledError:
        return simulate_step
    return simulate_compiled


def simulate_run(
    scenario: Scenario, steps: Iterable[int], *, progress: Callable[[], object] = lambda: None
) -> SimulatedRun:
    """Run the numbered steps; a stage begins the next one as soon as it is done. `progress` is called after each.

    Raises
    ------
    RuntimeError
        The schedule dead-locks.
    """
    numbers: list[int] = []
    done: list[SimulatedStep] = []
    begin: list[int] | None = None
    simulate = _fastest(scenario)
    for number in steps:

        def duration(stage: int, task: Task, step: int = number) -> int:
            return scenario.times.duration(step, stage, task)

        step = simulate(
            scenario.schedule,
            duration=duration,
            arrival=scenario.messages.of_step(number),
            begin=begin,
            buckets=scenario.buckets,
            replicated=scenario.replicated,
            gathered=done[-1].gathered if done else None,
            agreement_ns=scenario.agreement_ns,
            phased=scenario.phased,
            norm_ns=scenario.norm_ns(number),
        )
        numbers.append(number)
        done.append(step)
        begin = step.end
        progress()
    return SimulatedRun(numbers, done)
