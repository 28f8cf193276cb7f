"""Steps that follow each other as in run.py, too large to keep their rows: arrays in, sums by class out.

The compiled simulator makes the decisions; what it cannot run is refused by it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hpcpipe.plan import USEFUL, Kind, Placement, Schedule, Task, TimeClass
from hpcpipe.simulate.admitted import AdmittedTimes
from hpcpipe.simulate.compiled import BUCKET_KINDS, KINDS, CompiledSchedule, NotCompiledError, SimulatedArrays
from hpcpipe.simulate.durations import vary_durations
from hpcpipe.simulate.run import LinkMessages, Scenario
from hpcpipe.simulate.times import Times, UsualTimes


@dataclass(frozen=True, slots=True)
class LargeRun:
    """What a `SimulatedRun` says of its steps, but for their rows; ns."""

    steps: list[SimulatedArrays]

    @property
    def edges(self) -> list[int]:
        """Return the begin of the first window and the end of each."""
        return [int(self.steps[0].begin.min()), *(int(step.end.max()) for step in self.steps)]

    @property
    def window_ns(self) -> list[int]:
        """Return the length of each step's window."""
        return [after - before for before, after in pairwise(self.edges)]

    @property
    def step_ns(self) -> int:
        """Return the median length of a window."""
        return round(median(self.window_ns))

    @property
    def wall_ns(self) -> int:
        """Return the time of all windows together."""
        return self.edges[-1] - self.edges[0]

    def classes(self, stage: int) -> dict[TimeClass, int]:
        """Return the ns of each class on a stage; they sum to the wall time of all windows.

        A step that a stage waits for before the window of the step before has ended counts as that one's drain.
        """
        sums = self._sums[stage]
        return {each: int(sums[each]) for each in TimeClass if sums[each]}

    @property
    def bubble_ratio(self) -> float:
        """Return 1 - useful / wall over all stages."""
        useful = sum(int(step.classes[:, USEFUL].sum()) for step in self.steps)
        return 1.0 - useful / (self.wall_ns * len(self.steps[0].begin))

    @property
    def peak_in_flight(self) -> list[int]:
        """Return the most forwards of a chunk without their backward, by stage."""
        return [int(peak) for peak in np.max([step.peak_in_flight for step in self.steps], axis=0)]

    @property
    def peak_stash(self) -> list[int]:
        """Return the most forwards of a chunk without their weight gradient, by stage."""
        return [int(peak) for peak in np.max([step.peak_stash for step in self.steps], axis=0)]

    @property
    def _sums(self) -> NDArray[np.int64]:
        total = np.zeros_like(self.steps[0].classes)
        for number, (step, window) in enumerate(zip(self.steps, self.edges[:-1], strict=True)):
            classes = step.classes.copy()
            if number < len(self.steps) - 1:
                classes[:, TimeClass.DRAIN] = 0
            early = np.minimum(classes[:, TimeClass.WARMUP], np.maximum(0, window - step.begin))
            classes[:, TimeClass.WARMUP] -= early
            classes[:, TimeClass.DRAIN] += early
            total += classes
        return total


def simulate_large_run(
    scenario: Scenario, steps: Iterable[int], *, progress: Callable[[], object] = lambda: None
) -> LargeRun:
    """Run the numbered steps; a stage begins the next one as soon as it is done. `progress` is called after each.

    Raises
    ------
    ValueError
        The compiled simulator does not know the schedule's hint, or that a part is gathered early.
    RuntimeError
        The schedule dead-locks.
    """
    if scenario.gathers_early:
        raise NotCompiledError("the compiled simulator knows no gathers between reduce-scatters: use simulate_run")
    compiled = CompiledSchedule(scenario.schedule)
    most = max(scenario.buckets or (0,))
    done: list[SimulatedArrays] = []
    for number in steps:
        run = partial(
            compiled.run,
            _durations(scenario.times, scenario.schedule, number),
            begin=done[-1].end if done else None,
            agreement_ns=scenario.agreement_ns,
            buckets=scenario.buckets,
            bucket_durations=_of_buckets(scenario.times, scenario.schedule.placement, number, most),
            replicated=scenario.replicated,
            gathered=done[-1].gathered if done else None,
            phased=scenario.phased,
            norm_ns=scenario.norm_ns(number),
        )
        messages = scenario.messages
        if isinstance(messages, LinkMessages):
            done.append(run(link=messages.link, seed=messages.seed, step=number))
        else:
            done.append(run(arrival=messages.of_step(number)))
        progress()
    return LargeRun(done)


def _durations(times: Times, schedule: Schedule, step: int) -> NDArray[np.int64]:
    """Return the duration of every task, [stage][F, B, W][chunk][microbatch], axes of equal values shortened."""
    placement, microbatches = schedule.placement, schedule.microbatches
    if isinstance(times, AdmittedTimes):
        given = _durations(times.times, schedule, step)
        return given if given.shape[-1] == 1 else given[..., list(times.order(step))]
    if isinstance(times, UsualTimes):
        usual = [[times.usual(stage, kind) for kind in KINDS] for stage in range(placement.stages)]
        return vary_durations(
            usual, times.compute, placement=placement, microbatches=microbatches, seed=times.seed, step=step
        )
    kinds = KINDS if schedule.split else KINDS[:2]
    return np.array(
        [
            [
                [
                    [times.duration(step, stage, Task(kind, m, c)) for m in range(microbatches)]
                    for c in _chunks(placement)
                ]
                for kind in kinds
            ]
            for stage in range(placement.stages)
        ],
        dtype=np.int64,
    )


def _of_buckets(times: Times, placement: Placement, step: int, most: int) -> NDArray[np.int64]:
    return np.array(
        [
            [[times.duration(step, stage, Task(Kind(kind), b)) for b in range(most)] for kind in BUCKET_KINDS]
            for stage in range(placement.stages)
        ],
        dtype=np.int64,
    ).reshape(placement.stages, len(BUCKET_KINDS), most)


def _chunks(placement: Placement) -> range:
    return range(placement.chunks)
