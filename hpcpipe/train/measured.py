"""The schedule of the next step, where its hint follows measured times: every stage measures, all share, all agree.

The rows travel in the all-reduce that carries the loss, so they cost no message and come one step late; of each stage
one replica's row is taken, so that every rank computes from the same bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcpipe.events import FLAG_RECOMPUTED
from hpcpipe.plan import Kind, Schedule, Task
from hpcpipe.plan.hints import FAMILIES
from hpcpipe.plan.online import OnlineProfile
from hpcpipe.plan.profile import KINDS, StageTimes, gather
from hpcpipe.runtime import Place
from hpcpipe.runtime.engine import Recorder


class ConstantSchedule:
    """Stands where nothing is measured."""

    entries = 0

    def __init__(self, schedule: Schedule, recorder: Recorder) -> None:
        self.schedule = schedule
        self.recorder = recorder

    def row(self) -> list[float]:
        """Return nothing to share."""
        return []

    def take(self, rows: Sequence[float]) -> None:
        """Take nothing."""


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
        self.recorder = self
        self._recorder = recorder
        self._shifts = clock_shifts
        self._stage = place.stage
        self._speaks = place.replica == 0 and place.slice == 0
        self._stages = schedule.placement.stages
        self._chunks = schedule.placement.chunks
        self._profile = OnlineProfile(chunks=self._chunks)
        self._width = len(KINDS) * self._chunks + 5
        self._taken = 0
        self.entries = self._width * self._stages

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Keep one event and measure by it: tasks by their length, messages by the waits that they ended."""
        if kind <= Kind.W and not flags & FLAG_RECOMPUTED:
            self._profile.add(Task(Kind(kind), microbatch, chunk), t_end - t_start)
        elif kind == Kind.WAIT and peer >= 0 and t_ready >= 0:
            self._profile.add_delay(t_end - t_ready - self._shifts[peer])
        self._recorder.event(
            kind,
            step,
            microbatch,
            chunk,
            t_ready,
            t_start,
            t_end,
            wait_class,
            peer,
            nbytes,
            rank_in_hint,
            ready_count,
            flags,
        )

    def row(self) -> list[float]:
        """End the step's measurements and return what to share: this stage's row in its place, zeros elsewhere."""
        shared = [0.0] * self.entries
        times = self._profile.end_step()
        if times is not None and self._speaks:
            durations = [ns for kind in times.durations for ns in kind]
            row = [1.0, *durations, times.spread, float(times.messages), times.delay, times.delay_rms]
            begin = self._stage * self._width
            shared[begin : begin + self._width] = row
        return shared

    def take(self, rows: Sequence[float]) -> None:
        """Take the rows of all stages; from time to time make the schedule that fits them."""
        self._taken += 1
        if self._taken & (self._taken - 1) or self._taken == 1:
            return
        measured = [self._read(rows[i * self._width : (i + 1) * self._width]) for i in range(self._stages)]
        known = [times for times in measured if times is not None]
        if len(known) == self._stages:
            self.schedule = replace(self.schedule, profile=gather(known))

    def _read(self, row: Sequence[float]) -> StageTimes | None:
        there, *durations = row[: 1 + len(KINDS) * self._chunks]
        spread, messages, delay, delay_rms = row[-4:]
        if there != 1.0:
            return None
        lanes = tuple(tuple(durations[i * self._chunks : (i + 1) * self._chunks]) for i in range(len(KINDS)))
        return StageTimes(lanes, spread, round(messages), delay, delay_rms)


def schedule_source(
    schedule: Schedule, recorder: Recorder, *, place: Place, clock_shifts: Mapping[int, int]
) -> ConstantSchedule | MeasuredSchedule:
    """Return where the schedule of every step comes from."""
    if schedule.hint in FAMILIES and FAMILIES[schedule.hint].profiled:
        return MeasuredSchedule(schedule, recorder, place=place, clock_shifts=clock_shifts)
    return ConstantSchedule(schedule, recorder)
