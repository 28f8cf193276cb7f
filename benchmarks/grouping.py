"""Print what the live choice of the grouping costs each rank: measuring, taking all ranks' sums, and predicting.

Seconds are of CPU time, which others on the machine do not stretch. Shares are of steps whose micro-batches take 5 ms
forward and 10 ms backward: shorter ones on a real GPU make the share larger in proportion, so it is printed beside
the time. A look at all candidates comes every 20 steps, or later where it would take more than 0.25 % of the steps.
"""

import argparse
import time
from types import SimpleNamespace

from rich.console import Console
from rich.table import Table

from hpcpipe.plan import FLAG_BACKWARD, Kind, Limits, Placement, Schedule
from hpcpipe.tune import Chooser, Meter, Settings, StageMemory, make_space

FORWARD_NS, BACKWARD_NS = 5_000_000, 10_000_000
SIZES = ((4, 16), (8, 32), (8, 64), (16, 64), (16, 128), (32, 128))


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps of each size")
    steps = parser.parse_args().steps
    table = Table(title="the live choice of k and b, by rank and step")
    headings = ("stages", "M", "dispatch", "candidates", "measure µs", "take µs", "looks µs", "share")
    for heading in headings:
        table.add_column(heading, justify="right")
    for stages, microbatches in SIZES:
        for dispatch in ("fixed", "ready"):
            table.add_row(str(stages), str(microbatches), dispatch, *_measure(stages, microbatches, dispatch, steps))
    Console().print(table)


def _measure(stages: int, microbatches: int, dispatch: str, steps: int) -> list[str]:
    space = make_space(
        batch=microbatches, stages=stages, memory=[StageMemory(0, 1)] * stages, limit=None, dispatch=dispatch
    )
    limits = tuple(Limits(None if dispatch == "fixed" else stages - stage) for stage in range(stages))
    base = Schedule("kfkb", dispatch, Placement(stages), microbatches, limits, k=1)
    start = next(c.grouping for c in space.candidates if c.grouping.microbatch_size == 1)
    chooser = Chooser(space, base=base, batch=microbatches, start=start, settings=Settings(interval=20))
    shifts = dict.fromkeys(range(stages), 0)
    places = [SimpleNamespace(pipeline=stages, stage=stage, slice=0) for stage in range(stages)]
    meters = [Meter(place=place, clock_shifts=shifts) for place in places]
    step_ns = (microbatches + stages - 1) * (FORWARD_NS + BACKWARD_NS)
    metering, taking, looking = 0, 0, 0
    for step in range(steps):
        sums = [0.0] * meters[0].entries
        delay = 100_000 if step // 50 % 2 == 0 else 6_000_000
        for stage, meter in enumerate(meters):
            begin = time.process_time_ns()
            _feed(meter, stage, stages, microbatches, delay)
            row = meter.row(step_ns)
            metering += time.process_time_ns() - begin if stage == 1 else 0
            sums = [a + b for a, b in zip(sums, row, strict=True)]
        before = chooser._next_look
        begin = time.process_time_ns()
        chooser.take(step, sums)
        took = time.process_time_ns() - begin
        if chooser._next_look != before:
            looking += took
        else:
            taking += took
    share = (metering + taking + looking) / (steps * step_ns)
    each = [f"{part / steps * 1e-3:.0f}" for part in (metering, taking, looking)]
    return [str(len(space.candidates)), *each, f"{share:.3%}"]


def _feed(meter: Meter, stage: int, stages: int, microbatches: int, delay: int) -> None:
    """Give a meter the events of a step on an inner stage."""
    now = 0
    for _ in range(microbatches):
        for kind, length, source in ((Kind.F, FORWARD_NS, stage - 1), (Kind.B, BACKWARD_NS, stage + 1)):
            if 0 <= source < stages:
                flags = FLAG_BACKWARD * (kind is Kind.B)
                meter.measure(Kind.RECV, 0, now, now, now + delay, source, 65536, flags)
            meter.measure(kind, 0, now, now, now + length, -1, 0, 0)
            now += length


if __name__ == "__main__":
    main()
