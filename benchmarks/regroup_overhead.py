"""Print what the choice of the grouping costs a rank while it trains, as a share of a step; the aim is below 0.5 %.

One process, no MPI: a rank's events of many steps are handed to the recorder alone and to the meter before it, rows are
summed as the all-reduce would, and the chooser takes them, with its looks at all candidates. Now and then an edge slows
down or recovers, so that trials and changes are among the steps. Times are of this machine, medians over repetitions.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hpcpipe.job import Job, load_job
from hpcpipe.plan import Kind
from hpcpipe.runtime import Place
from hpcpipe.runtime.engine import StepTimes
from hpcpipe.train import Layout
from hpcpipe.train.grouping import Grouped, Groupings
from hpcpipe.train.regroup import Regrouping

JOB = """
[job]
steps = 1
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
message_bytes = 64
[schedule]
hint = "kfkb"
[tune]
grouping = "on"
memory_limit = "1 MiB"
"""
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline: stages, micro-batches of a step, and ms of a micro-batch's forward and backward on a stage."""

    stages: int
    microbatches: int
    forward_ms: float
    backward_ms: float
    dispatch: str

    @property
    def step_ns(self) -> float:
        """What a step takes at least (papers: (M + S - 1)(F + B))."""
        return (self.microbatches + self.stages - 1) * (self.forward_ms + self.backward_ms) * NS_PER_MS


CASES = [
    Case(stages, microbatches, forward, 2 * forward, dispatch)
    for stages, microbatches, forward in ((2, 8, 1.0), (4, 16, 1.0), (8, 32, 1.0), (8, 64, 10.0), (16, 64, 10.0))
    for dispatch in ("fixed", "ready")
]


class Recorder:
    """Takes events as the log's writer does, and forgets them."""

    def event(self, *values: int) -> None:
        """Forget the event."""


def feed(event: Callable[..., None], case: Case, delay_ns: int) -> None:
    """Hand over the events of a step of a rank in the middle."""
    forward, backward = round(case.forward_ms * NS_PER_MS), round(case.backward_ms * NS_PER_MS)
    at = 0
    for m in range(case.microbatches):
        for kind, peer, took, flags in ((Kind.F, 0, forward, 0), (Kind.B, 2, backward, 1)):
            event(Kind.RECV, 0, m, 0, at, at, at + delay_ns, 0, peer, 4096, -1, 0, flags)
            event(Kind.WAIT, 0, m, 0, at, at, at + delay_ns, 1, peer, 0, -1, 0, flags)
            event(kind, 0, m, 0, at, at, at + took, 0, -1, 0, m, 2, 0)
            event(Kind.SEND, 0, m, 0, at, at, at + took, 0, peer, 4096, -1, 0, flags)
            at += took


def job_of(case: Case, folder: Path) -> Job:
    """Return a job that asks for the choice."""
    path = folder / "job.toml"
    path.write_text(JOB)
    sizes = (f"parallel.pipeline={case.stages}", f"batch.microbatches={case.microbatches}")
    times = (f"device.forward_ms={case.forward_ms}", f"device.backward_ms={case.backward_ms}")
    return load_job(path, (*sizes, *times, f'schedule.dispatch="{case.dispatch}"'))


def per_step(case: Case, steps: int, folder: Path) -> tuple[float, float, float]:
    """Return the ns a step of a rank for its events, for its row, and for the choice."""
    job = job_of(case, folder)
    layout = Layout.of(job)
    sources = [
        Regrouping(
            job,
            layout.schedule,
            Recorder(),
            groupings=Groupings(Grouped(job, layout)),
            place=Place(case.stages, 1, 1, stage, 0, 0),
            clock_shifts=dict.fromkeys(range(case.stages + 2), 0),
        )
        for stage in range(case.stages)
    ]
    events, rows, choices = [], [], []
    ended, usual = 0, sources[0].of(0)
    for step in range(steps):
        slow = step // 60 % 2
        delay = round((1.0 if slow else 0.01) * (case.forward_ms + case.backward_ms) * NS_PER_MS)
        before, ended = ended, ended + round(case.step_ns * (2.0 if slow and sources[0].of(step) == usual else 1.0))
        shared = []
        for source in sources:
            begin = time.perf_counter_ns()
            feed(source.event, case, delay)
            measured = time.perf_counter_ns()
            feed(Recorder().event, case, delay)
            plain = time.perf_counter_ns()
            shared.append(source.row(step, StepTimes(before, ended)))
            done = time.perf_counter_ns()
            events.append(measured - begin - (plain - measured))
            rows.append(done - plain)
        sums = [sum(values) for values in zip(*shared, strict=True)]
        for source in sources:
            begin = time.perf_counter_ns()
            source.take(step, sums)
            choices.append(time.perf_counter_ns() - begin)
    return statistics.median(events), statistics.median(rows), statistics.fmean(choices)


def table_of(cases: Sequence[Case], steps: int, folder: Path) -> Table:
    """Return the table of all cases."""
    table = Table(title=f"the choice of the grouping, per rank and step, over {steps} steps")
    for name in ("stages", "micro-batches", "dispatch", "step, ms", "events, µs", "row, µs", "choice, µs", "share"):
        table.add_column(name, justify="right")
    for case in cases:
        events, row, choice = per_step(case, steps, folder)
        share = (events + row + choice) / case.step_ns
        cells = [f"{ns / 1e3:.1f}" for ns in (events, row, choice)]
        sizes = (str(case.stages), str(case.microbatches), case.dispatch, f"{case.step_ns / 1e6:.0f}")
        table.add_row(*sizes, *cells, f"{share:.3%}")
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=240, help="steps of every case")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Console().print(table_of(CASES, arguments.steps, Path(folder)))


if __name__ == "__main__":
    main()
