"""What a job's steps would cost, under its own schedule and under others: the work of `hpcpipe simulate`, as data.

How it is shown is not known here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hpcpipe.api.job_files import JobLike, Settings, as_file, as_words
from hpcpipe.job import Fault, Job, JobError, load_job
from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import of_option
from hpcpipe.job.schedule_words import schedule_settings

if TYPE_CHECKING:
    import polars as pl

    from hpcpipe.analyze.prediction import Prediction
    from hpcpipe.analyze.recorded import Recording
    from hpcpipe.analyze.suggestion import Suggestion
    from hpcpipe.simulate.costs import Costs, Machine

BASELINE = "1f1b:fixed:admission=as-given"
"""What speeds are compared with: the order that other frameworks follow."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """Predictions of the same steps under several schedules, each with the same draws.

    Parameters
    ----------
    baseline
        Under 1F1B in fixed order.
    predictions
        Under the job's own schedule, which comes first, and under those to compare.
    assumptions
        Where the times come from and what was left out, each a sentence.
    own_error
        Where the times are a run's: by how much its own simulated steps are off, the median of |error| as a share.
    suggestion
        Settings that suit the times better than the job's own schedule, if there are.
    """

    baseline: "Prediction"
    predictions: "tuple[Prediction, ...]"
    assumptions: tuple[str, ...]
    own_error: float | None
    suggestion: "Suggestion | None" = None

    def frame(self) -> "pl.DataFrame":
        """Return a row a schedule: `schedule`, `step_ms`, `speedup` over the baseline, `bubble`, `stash`, `mib`.

        `bubble` is 1 - useful / wall; `stash` the most micro-batches that a stage holds, `mib` their activations.
        """
        import polars as pl

        columns = ("schedule", "step_ms", "speedup", "bubble", "stash", "mib")
        return pl.DataFrame([dict(zip(columns, self._row(each), strict=True)) for each in self.predictions])

    def plot(self, path: Path | str) -> list[Path]:
        """Draw a Gantt chart of the last step (.png or .svg), one file a schedule on one time scale; return the files.

        Raises
        ------
        AnalysisError
            The steps have too many tasks to draw.
        """
        from hpcpipe.analyze import AnalysisError, length_ns, plot_gantt

        path, drawn = Path(path), []
        for each in self.predictions:
            if each.log is None:
                raise AnalysisError("too many tasks to draw; choose fewer --steps or a smaller job")
            last = int(each.log.ranks[0].steps.step[-1])
            where = path if len(self.predictions) == 1 else path.with_stem(f"{path.stem}-{each.file_name}")
            drawn.append((where, each.log, (last, last)))
        longest = max(length_ns(log, step) for _, log, step in drawn)
        for where, log, step in drawn:
            plot_gantt(log, where, step, axis_ns=longest)
        return [where for where, _, _ in drawn]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `simulate --json`."""
        from hpcpipe.analyze.prediction import FORMAT, SCHEMA_VERSION

        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "results": [each.to_json(self.baseline.step_ns) for each in self.predictions],
            "baseline": self.baseline.to_json(self.baseline.step_ns),
            "assumptions": list(self.assumptions),
            "own_error": self.own_error,
            "suggestion": None if self.suggestion is None else self.suggestion.to_json(),
        }

    def _row(self, each: "Prediction") -> tuple[str, float, float, float, float, float]:
        return (
            each.name,
            each.step_ns / 1e6,
            self.baseline.step_ns / max(1, each.step_ns),
            each.bubble_ratio,
            max(each.peak_stash),
            max(each.peak_bytes) / 2**20,
        )


def predict(
    job: JobLike,
    overrides: Settings = (),
    *,
    compare: Sequence[str] = (),
    run: Path | str | None = None,
    ranks: int | None = None,
    steps: int = 6,
    machine: "Machine | None" = None,
    agreement_us: float = 0.0,
) -> Simulation:
    """Predict step time, waits and memory of a job; nothing is started.

    Times come from an emulated device's settings, from a run's log, or from the model's FLOPs and bytes. The simulator
    takes the runtime's own decisions (readiness-first dispatch, arXiv 2605.18750).

    Parameters
    ----------
    job
        A checked job or the path of a job file.
    overrides
        Values to change, `{"schedule.hint": "zbv"}` or `["schedule.hint=zbv"]`.
    compare
        Other schedules in one word each: `"1f1b:fixed"`, `"kfkb:k=4"`, `"bf:in_flight=2x"`.
    run
        A run directory whose recorded times are taken.
    ranks
        Another number of ranks: a longer or shorter pipeline.
    steps
        How many steps; of a run the last ones.
    machine
        Achieved TFLOP/s, Gbit/s and latency, where times are from FLOPs and bytes.
    agreement_us
        What tensor slices take to agree on a task, in µs.

    Raises
    ------
    JobError
        Every fault of the job, also under the other schedules.
    ValueError
        A schedule's word, or `ranks`, cannot be used, or a cap not be met.
    LogError, AnalysisError
        The run has no log that can be read, or not two whole steps.
    """
    with as_file(job) as path:
        jobs = schedules(path, as_words(overrides), compare=compare, ranks=ranks)
        recording = record_run(run)
        return simulate_jobs(jobs, recording=recording, machine=machine, steps=steps, agreement_us=agreement_us)


def schedules(
    job_file: Path, overrides: Sequence[str], *, compare: Sequence[str] = (), ranks: int | None = None
) -> list[Job]:
    """Return the job under fixed 1F1B, as it stands, and under each schedule to compare.

    Raises
    ------
    JobError
        Every fault under any of them.
    ValueError
        A schedule or `ranks` cannot be used.
    """
    settings, options = list(overrides), list[str]()
    faults: list[Fault] = []
    try:
        job = load_job(job_file, settings)
        if ranks is not None:
            mesh = job.parallel
            if ranks % (mesh.data * mesh.tensor):
                raise ValueError(f"ranks {ranks} is not a multiple of data {mesh.data} x tensor {mesh.tensor}")
            settings += [f"parallel.pipeline={ranks // (mesh.data * mesh.tensor)}", "parallel.split=auto"]
            options += [f"--ranks {ranks}"] * 2
    except JobError as error:
        faults += error.faults
    if isinstance(compare, str):
        raise TypeError(f"compare is a list of schedules, not one text: [{compare!r}]")
    variants = [("the baseline " + BASELINE, schedule_settings(BASELINE)), ("", [])]
    variants += [(f"--compare {each}", schedule_settings(each)) for each in compare]
    jobs = []
    for option, variant in variants if not faults else ():
        try:
            jobs.append(load_job(job_file, [*settings, *variant]))
        except JobError as error:
            typed = [*options, *[option] * len(variant)]
            found = [of_option(fault, typed, after=len(overrides)) for fault in error.faults]
            faults += [fault for fault in found if fault not in faults]
    if faults:
        raise JobError(faults)
    return jobs


def record_run(run: Path | str | None) -> "Recording | None":
    """Return the times of a run, None where none is given."""
    if run is None:
        return None
    from hpcpipe.analyze.recorded import record
    from hpcpipe.events import open_run

    return record(open_run(run))


def simulate_jobs(
    jobs: Sequence[Job],
    *,
    recording: "Recording | None" = None,
    machine: "Machine | None" = None,
    steps: int = 6,
    agreement_us: float = 0.0,
    progress: Callable[[], object] = lambda: None,
) -> Simulation:
    """Simulate the jobs of `schedules` over the same steps; `progress` is called after each step of each.

    Raises
    ------
    ValueError
        A cap of a job cannot be met.
    """
    from hpcpipe.analyze.prediction import predict as predict_one
    from hpcpipe.analyze.suggestion import suggest

    numbers = steps_of(recording, steps)
    agreement_ns = round(1e3 * agreement_us) if jobs[0].parallel.tensor > 1 else 0
    predictions = []
    assumptions: tuple[str, ...] = ()
    for job in jobs:
        costs = _costs(job, recording, machine)
        assumptions = costs.assumptions
        agreed = agreement_ns if job.schedule.dispatch == "ready" else 0  # a fixed order is the same on all slices
        predictions.append(predict_one(job, costs, numbers, agreement_ns=agreed, progress=progress))
    if agreement_ns:
        assumptions += (f"tensor slices agree {agreement_ns / 1e3:g} µs after a message, but in a fixed order",)
    baseline, *shown = predictions
    suggestion = suggest(shown[0], lambda job: _costs(job, recording, machine), numbers, agreement_ns=agreement_ns)
    return Simulation(baseline, tuple(shown), assumptions, _own_error(recording), suggestion)


def steps_of(recording: "Recording | None", count: int) -> list[int]:
    """Return the numbers of the steps that are simulated."""
    return list(range(count)) if recording is None else list(recording.steps[-count:])


def is_analytic(job: Job, recording: "Recording | None") -> bool:
    """Return whether times are from FLOPs and bytes."""
    return recording is None and not isinstance(job.device, Emulated)


def _own_error(recording: "Recording | None") -> float | None:
    """Return the median relative error of the simulated steps of the run itself."""
    errors = recording.own_errors() if recording is not None else []
    return median(map(abs, errors)) if errors else None


def _costs(job: Job, recording: "Recording | None", machine: "Machine | None") -> "Costs":
    from hpcpipe.simulate.costs import Machine, emulated_costs

    if isinstance(job.device, Emulated):
        costs = emulated_costs(job)
    else:
        from hpcpipe.train.sizes import analytic_costs_of

        costs = analytic_costs_of(job, machine or Machine())
    return costs if recording is None else recording.costs_for(job, costs.activation_bytes)
