"""What the log of a run says of its steps, measured as a running training measures itself.

It reads rows that are already in memory; which files they come from is not its concern.
"""

from dataclasses import dataclass

import numpy as np

from hpcpipe.events import RunLog
from hpcpipe.plan import Kind
from hpcpipe.tune.meter import Meter, Report, read_rows


@dataclass(frozen=True, slots=True)
class _Place:
    pipeline: int
    stage: int
    slice: int


def reports_of(run: RunLog, *, skip: int = 0, blind: bool = False) -> list[Report]:
    """Return a report of every step but the first `skip`; `blind` as in `Meter`.

    A step is as long as it is from the end of the one before to its own.
    """
    pipeline = run.header.mesh[0]
    shifts = {rank.rank: 0 for rank in run.ranks}  # times are of one clock already
    steps = sorted(set.intersection(*(set(rank.steps.step.tolist()) for rank in run.ranks)))
    sums = [np.zeros(0)] * len(steps)
    for rank in run.ranks:
        stage, _, tensor_slice = rank.header.coords
        meter = Meter(place=_Place(pipeline, stage, tensor_slice), clock_shifts=shifts, blind=blind)
        ends = dict(zip(rank.steps.step.tolist(), rank.steps.t_end.tolist(), strict=True))
        events = rank.events
        events = events.take(np.isin(events.kind, (Kind.F, Kind.B, Kind.RECV)))
        events = events.take(np.argsort(events.t_end, kind="stable"))
        for index, step in enumerate(steps):
            mine = events.take(events.step == step)
            columns = (mine.kind, mine.t_ready, mine.t_start, mine.t_end, mine.peer, mine.nbytes, mine.flags)
            for kind, ready, start, end, peer, nbytes, flags in zip(*(c.tolist() for c in columns), strict=True):
                if kind == Kind.RECV and ready < 0:
                    continue  # the sender's clock is not known
                meter.measure(kind, 0, ready, start, end, peer, nbytes, flags)
            row = np.array(meter.row(ends[step] - ends[step - 1] if step - 1 in ends else 0))
            sums[index] = row if not len(sums[index]) else sums[index] + row
    found = (read_rows(each.tolist(), stages=pipeline) for each in sums[skip:])
    return [report for report in found if report is not None]
