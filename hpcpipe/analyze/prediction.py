"""What a schedule would cost, in the words of a report: step time, classes, memory, critical path.

The simulation is simulate/'s, the classes and the path are those of real logs; how it is shown is not known here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpcpipe.analyze.simulated import as_log
from hpcpipe.analyze.summary import summarize
from hpcpipe.events import RunLog
from hpcpipe.job import Job
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import TimeClass
from hpcpipe.simulate import Scenario, SimulatedRun, simulate_run
from hpcpipe.simulate.costs import Costs
from hpcpipe.simulate.large_run import LargeRun, simulate_large_run

FORMAT = "hpcpipe-simulation"
SCHEMA_VERSION = "1.0.0"
MOST_TASKS_IN_DETAIL = 200_000
"""Beyond this many tasks the critical path, which needs every row, is left out."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One schedule. Classes sum over stages to stages · wall; peaks by stage, in whole micro-batches and bytes.

    `critical_path` is the share of each kind of task and gap in the path that sets the length of the steps.
    """

    job: Job
    step_ns: int
    bubble_ratio: float
    classes: dict[TimeClass, int]
    peak_in_flight: tuple[float, ...]
    peak_stash: tuple[float, ...]
    peak_bytes: tuple[int, ...]
    critical_path: dict[str, float]
    log: RunLog | None

    @property
    def name(self) -> str:
        """The schedule in few words."""
        settings = self.job.schedule
        group = f" k={settings.k}" if settings.hint == "kfkb" else ""
        caps = "" if settings.in_flight == "equal-memory" or settings.dispatch == "fixed" else f" {settings.in_flight}"
        admission = "" if settings.admission == "as-given" else f" {settings.admission}"
        return f"{settings.dispatch} {settings.hint}{group}{caps}{admission}"

    @property
    def file_name(self) -> str:
        """The same as part of a file's name."""
        return "".join(c if c.isalnum() or c in "-=." else "-" for c in self.name)

    def to_json(self, baseline_ns: int) -> dict[str, Any]:
        """Return an entry of `results` of `simulate --json`."""
        settings = self.job.schedule
        in_flight = list(settings.in_flight) if isinstance(settings.in_flight, tuple) else settings.in_flight
        return {
            "hint": settings.hint,
            "dispatch": settings.dispatch,
            "in_flight": in_flight,
            "k": settings.k,
            "chunks": self.job.chunks,
            "admission": settings.admission,
            "step_ns": self.step_ns,
            "speedup": baseline_ns / self.step_ns if self.step_ns else 1.0,
            "bubble_ratio": self.bubble_ratio,
            "classes": {each.name.lower(): ns for each, ns in self.classes.items()},
            "peak_in_flight": list(self.peak_in_flight),
            "peak_stash": list(self.peak_stash),
            "peak_bytes": list(self.peak_bytes),
            "critical_path": self.critical_path,
        }


def predict(
    job: Job,
    costs: Costs,
    steps: Iterable[int],
    *,
    agreement_ns: int = 0,
    progress: Callable[[], object] = lambda: None,
) -> Prediction:
    """Simulate the steps of a job.

    `agreement_ns` is what the tensor slices of a stage take to agree on what a message has made ready.

    Raises
    ------
    ValueError
        A cap of the job cannot be met.
    """
    schedule = schedule_of(job, activation_bytes=costs.activation_bytes)
    scenario = Scenario(
        schedule,
        costs.times,
        costs.messages,
        costs.buckets,
        job.parallel.data > 1,
        agreement_ns,
        phased=not job.comm.split_allreduce,
        norm=job.has_norm,
        gathers_early=costs.gathers_early,
    )
    chunks, stages, numbers = job.chunks, range(job.parallel.pipeline), list(steps)
    tasks = len(numbers) * len(stages) * chunks * job.batch.microbatches * (3 if job.splits else 2)
    run: SimulatedRun | LargeRun
    if tasks <= MOST_TASKS_IN_DETAIL or costs.gathers_early:  # which only the detailed simulation knows
        run = simulate_run(scenario, numbers, progress=progress)
        log = as_log(run, job)
        report = summarize(log)
        classes, path = report.classes, _shares(report.path_kinds)
    else:
        run = simulate_large_run(scenario, numbers, progress=progress)
        log, classes, path = None, _classes(run.classes, stages), {}
    return Prediction(
        job=job,
        step_ns=run.step_ns,
        bubble_ratio=run.bubble_ratio,
        classes=classes,
        peak_in_flight=tuple(peak / chunks for peak in run.peak_in_flight),
        peak_stash=tuple(peak / chunks for peak in run.peak_stash),
        peak_bytes=tuple(
            round(peak / chunks * size) for peak, size in zip(run.peak_stash, costs.activation_bytes, strict=True)
        ),
        critical_path=path,
        log=log,
    )


def _shares(lengths: dict[str, int]) -> dict[str, float]:
    whole = sum(lengths.values())
    return {kind: ns / whole for kind, ns in lengths.items() if ns}


def _classes(of_stage: Callable[[int], dict[TimeClass, int]], stages: Iterable[int]) -> dict[TimeClass, int]:
    sums: dict[TimeClass, int] = {each: 0 for each in TimeClass if each is not TimeClass.NONE}
    for stage in stages:
        for each, ns in of_stage(stage).items():
            sums[each] += ns
    return sums
