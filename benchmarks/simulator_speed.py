"""Print how fast the simulators are: Python beside compiled, and how the compiled one's time and memory grow with size.

A forward, a backward and a weight gradient take 1 ms each, lognormal 0.6 a task; a message 50 µs, lognormal 0.5.
Seconds are of CPU time, which others on the machine do not stretch (one thread works, so on an idle machine it is the
time that passes); nothing is left out: preparing the orders, drawing all durations, and the simulation. Every size runs
in a process of its own, so that peak memory is that size's (the interpreter and numpy included).
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.plan import RULES, Kind, Limits, Placement, Schedule, Task
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.simulate import CompiledSchedule, Link, Lognormal, Network, simulate_step, vary_durations

UNIT_NS = 1e6
NOISE = Lognormal(0.6)
LINK = Link(50_000.0, 0.5)
PYTHON_SIZES = ((8, 32), (16, 64), (32, 128))
MANY = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """What is simulated."""

    hint: str
    dispatch: str
    stages: int
    microbatches: int

    @property
    def schedule(self) -> Schedule:
        """Return it with the caps of equal memory where they apply."""
        placement = Placement(self.stages) if self.hint in RULES else placement_of(self.hint, stages=self.stages)
        room = self.stages * placement.chunks
        limits = Limits() if self.dispatch == "fixed" else Limits(room, room)
        split = self.hint in SPLIT
        return Schedule(self.hint, self.dispatch, placement, self.microbatches, (limits,) * self.stages, split, False)

    @property
    def tasks(self) -> int:
        """Return how many tasks all stages have."""
        schedule = self.schedule
        return self.stages * self.microbatches * schedule.placement.chunks * (3 if schedule.split else 2)

    @property
    def usual(self) -> list[list[float]]:
        """Return ns by kind."""
        return [[UNIT_NS, UNIT_NS, UNIT_NS] if self.schedule.split else [UNIT_NS, 2 * UNIT_NS, 0.0]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took: seconds of CPU time, seconds that passed, and bytes."""

    prepare: float
    draw: float
    run: float
    passed: float
    peak_bytes: int

    @property
    def total(self) -> float:
        """Return all seconds of CPU time."""
        return self.prepare + self.draw + self.run


def measure(job: Job) -> Cost:
    """Simulate once, from the names to the result."""
    schedule = job.schedule
    clock, start = time.perf_counter(), time.process_time()
    compiled = CompiledSchedule(schedule)
    prepared = time.process_time()
    durations = vary_durations(job.usual, NOISE, placement=schedule.placement, microbatches=job.microbatches)
    drawn = time.process_time()
    compiled.run(durations, link=LINK)
    end = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Cost(prepared - start, drawn - prepared, end - drawn, time.perf_counter() - clock, peak)


def alone(job: Job) -> Cost:
    """Measure in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, job).result()


def seconds_of_python(job: Job) -> float:
    """Simulate once with `simulate_step`."""
    schedule = job.schedule
    usual = job.usual[0]

    def duration(stage: int, task: Task) -> int:
        return round(NOISE.vary(usual[task.kind], seed=0, step=0, stage=stage, task=task))

    kinds = (Kind.F, Kind.B, Kind.W) if schedule.split else (Kind.F, Kind.B)
    tasks = [Task(k, m, c) for k in kinds for m in range(job.microbatches) for c in range(schedule.placement.chunks)]
    drawn = {(stage, task): duration(stage, task) for stage in range(job.stages) for task in tasks}
    start = time.process_time()
    simulate_step(schedule, duration=lambda stage, task: drawn[stage, task], arrival=Network(LINK).arrival)
    return time.process_time() - start


def best_of(repeats: int, once: Callable[[], object]) -> float:
    """Return the shortest time of some repetitions."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        once()
        times.append(time.process_time() - start)
    return min(times)


def compared(hint: str, dispatch: str) -> Table:
    """Return the table of both simulators; durations are drawn beforehand for both, preparing counts for neither."""
    table = Table(title=f"{hint} {dispatch}: tasks a second, millions (durations drawn beforehand)")
    for name in ("stages", "micro-batches", "tasks", "Python", "compiled", "times as fast", "a call, µs"):
        table.add_column(name, justify="right")
    for stages, microbatches in track(PYTHON_SIZES, description="comparing", transient=True):
        job = Job(hint, dispatch, stages, microbatches)
        schedule = job.schedule
        compiled = CompiledSchedule(schedule)
        durations = vary_durations(job.usual, NOISE, placement=schedule.placement, microbatches=microbatches)
        slow = min(seconds_of_python(job) for _ in range(3))
        fast = best_of(max(20, MANY * 1000 // job.tasks), lambda c=compiled, d=durations: c.run(d, link=LINK))
        rates = f"{job.tasks / slow / 1e6:.3f}", f"{job.tasks / fast / 1e6:.2f}"
        table.add_row(
            str(stages), str(microbatches), f"{job.tasks:,}", *rates, f"{slow / fast:.0f}", f"{fast * 1e6:.0f}"
        )
    return table


def sizes(stages: int, microbatches: int) -> Iterator[tuple[int, int]]:
    """Yield sizes that double up to the largest, first in micro-batches and then in stages."""
    for halvings in (3, 2, 1):
        yield stages, max(1, microbatches >> halvings)
    yield stages, microbatches
    for halvings in (1, 2, 3):
        yield max(1, stages >> halvings), microbatches


def growth(hint: str, dispatch: str, stages: int, microbatches: int) -> Table:
    """Return the table over sizes."""
    table = Table(title=f"{hint} {dispatch}, compiled: seconds of CPU time from the names to the result")
    for name in (
        "stages",
        "micro-batches",
        "tasks",
        "prepare",
        "draw",
        "run",
        "total",
        "passed",
        "M tasks/s",
        "ns a task",
        "peak MiB",
    ):
        table.add_column(name, justify="right")
    for size in track(list(sizes(stages, microbatches)), description="growing", transient=True):
        job = Job(hint, dispatch, *size)
        cost = alone(job)
        table.add_row(
            *map(str, size),
            f"{job.tasks:,}",
            *(f"{part:.2f}" for part in (cost.prepare, cost.draw, cost.run, cost.total, cost.passed)),
            f"{job.tasks / cost.total / 1e6:.2f}",
            f"{cost.total / job.tasks * 1e9:.0f}",
            f"{cost.peak_bytes / 2**20:.0f}",
        )
    return table


def call_overhead() -> float:
    """Return the seconds of one call that has almost nothing to simulate."""
    compiled = CompiledSchedule(Schedule("1f1b", "fixed", Placement(1), 1, (Limits(),)))
    return best_of(MANY, lambda: compiled.run([[1, 2]]))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=1024, help="of the largest size")
    parser.add_argument("--microbatches", type=int, default=4096, help="of the largest size")
    options = parser.parse_args()
    console = Console(width=130)
    schedules = (("bfw", "ready"), ("zb-h1", "fixed"), ("zbv", "fixed"))
    for hint, dispatch in schedules:
        console.print(compared(hint, dispatch))
    console.print(f"a call with 2 tasks takes {call_overhead() * 1e6:.1f} µs")
    for hint, dispatch in schedules:
        console.print(growth(hint, dispatch, options.stages, options.microbatches))


if __name__ == "__main__":
    main()
