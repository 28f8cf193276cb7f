"""The schedule of the next step, where its hint follows measured times: every stage measures, all share, all agree.

The rows travel in the all-reduce that carries the loss, so they cost no message and come one step late; of each stage
one replica's row is taken, so that every rank computes from the same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hpcpipe.plan import FLAG_RECOMPUTED, Kind, Recorder, Schedule, Task
from hpcpipe.plan.online import OnlineProfile
from hpcpipe.plan.profile import KINDS, StageTimes, gather
from hpcpipe.runtime import Place, StepTimes
from hpcpipe.train.grouping import Groupings
from hpcpipe.train.measured_events import MeasuredEvents
from hpcpipe.tune import Decision


class Source(Protocol):
    """Where every step's schedule comes from. `entries` is how many numbers each rank adds to every step's sums."""

    entries: int
    recorder: Recorder
    """Where the engine's events go first, so that they can be measured by."""

    def of(self, step: int) -> Schedule:
        """Return the schedule of a step."""

    def row(self, step: int, times: StepTimes) -> Sequence[float]:
        """End a step's measurements and return what to share of them."""

    def take(self, step: int, sums: Sequence[float]) -> Sequence[Decision]:
        """Take the sums of the rows of a step, between two steps; return what was decided by them."""

    def numbers(self) -> Mapping[str, float]:
        """Return what a checkpoint has to hold so that a resumed run goes on likewise."""


class ConstantSchedule:
    """Stands where nothing is measured."""

    entries = 0

    def __init__(self, groupings: Groupings, recorder: Recorder) -> None:
        self._groupings = groupings
        self.recorder = recorder

    def of(self, step: int) -> Schedule:
        """Return the schedule of a step."""
        return self._groupings.at(step).layout.schedule

    def row(self, step: int, times: StepTimes) -> list[float]:
        """Return nothing to share."""
        del step, times
        return []

    def take(self, step: int, sums: Sequence[float]) -> Sequence[Decision]:
        """Take nothing."""
        del step, sums
        return ()

    def numbers(self) -> Mapping[str, float]:
        """Return nothing to keep."""
        return {}


class MeasuredSchedule:
    """Measures this rank's stage and takes what all measured.

    New orders are made after steps 2, 4, 8 and so on: making them takes a fraction of a second for large pipelines, and
    a profile of medians changes slowly.

    Parameters
    ----------
    recorder
        Where events go on to; the profile is fed from them.
    clock_shifts
        By rank: this rank's clock minus the other's (ns).
    """

    def __init__(
        self, schedule: Schedule, recorder: Recorder, *, place: Place, clock_shifts: Mapping[int, int]
    ) -> None:
        self.schedule = schedule
        self.recorder: Recorder = MeasuredEvents(recorder, self._measure)
        self._shifts = clock_shifts
        self._stage = place.stage
        self._speaks = place.replica == 0 and place.slice == 0
        self._stages = schedule.placement.stages
        self._chunks = schedule.placement.chunks
        self._profile = OnlineProfile(chunks=self._chunks)
        self._width = len(KINDS) * self._chunks + 5
        self._taken = 0
        self.entries = self._width * self._stages

    def _measure(
        self, kind: int, chunk: int, t_ready: int, t_start: int, t_end: int, peer: int, _nbytes: int, flags: int
    ) -> None:
        """Measure tasks by their length, messages by the waits that they ended."""
        if kind <= Kind.W and not flags & FLAG_RECOMPUTED:
            self._profile.add(Task(Kind(kind), 0, chunk), t_end - t_start)
        elif kind == Kind.WAIT and peer >= 0 and t_ready >= 0:
            self._profile.add_delay(t_end - t_ready - self._shifts[peer])

    def of(self, step: int) -> Schedule:
        """Return the newest schedule."""
        del step
        return self.schedule

    def numbers(self) -> Mapping[str, float]:
        """Return nothing to keep: it is measured again in two steps."""
        return {}

    def row(self, step: int, times: StepTimes) -> list[float]:
        """End the step's measurements and return what to share: this stage's row in its place, zeros elsewhere."""
        del step, times
        shared = [0.0] * self.entries
        measured = self._profile.end_step()
        if measured is not None and self._speaks:
            durations = [ns for kind in measured.durations for ns in kind]
            row = [1.0, *durations, measured.spread, float(measured.messages), measured.delay, measured.delay_rms]
            begin = self._stage * self._width
            shared[begin : begin + self._width] = row
        return shared

    def take(self, step: int, sums: Sequence[float]) -> Sequence[Decision]:
        """Take the rows of all stages; from time to time make the schedule that fits them."""
        del step
        self._taken += 1
        if self._taken & (self._taken - 1) or self._taken == 1:
            return ()
        measured = [self._read(sums[i * self._width : (i + 1) * self._width]) for i in range(self._stages)]
        known = [times for times in measured if times is not None]
        if len(known) == self._stages:
            self.schedule = replace(self.schedule, profile=gather(known))
        return ()

    def _read(self, row: Sequence[float]) -> StageTimes | None:
        there, *durations = row[: 1 + len(KINDS) * self._chunks]
        spread, messages, delay, delay_rms = row[-4:]
        if there != 1.0:
            return None
        lanes = tuple(tuple(durations[i * self._chunks : (i + 1) * self._chunks]) for i in range(len(KINDS)))
        return StageTimes(lanes, spread, round(messages), delay, delay_rms)
