"""`hpcpipe simulate`: what a job's steps would cost, under its own schedule and under others, here or elsewhere."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.cli.schedule_words import schedule_settings
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.analyze.prediction import Prediction
    from hpcpipe.analyze.recorded import Recording
    from hpcpipe.job import Fault, Job
    from hpcpipe.simulate.costs import Costs, Machine

EXAMPLES = """\b
Examples:
  hpcpipe simulate job.toml --compare 1f1b:fixed,zbv:fixed,bf,kfkb:k=4
  hpcpipe simulate job.toml --from runs/quickstart/latest --compare zb-h1
  hpcpipe simulate job.toml --ranks 64 --tflops 120 --gbit 200 --plot gantt.png
"""

COMPARE_HELP = (
    "Schedules to compare with the job's own, by commas: HINT, and after colons fixed or ready, k=N, in_flight=CAP, "
    "stash=CAP, admission=RULE."
)


@click.command(epilog=EXAMPLES)
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option("--compare", metavar="LIST", default="", help=COMPARE_HELP)
@click.option("--from", "run", type=click.Path(path_type=Path), metavar="RUN", help="Take times from a run's log.")
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), help="Another number of ranks: a longer or shorter pipeline."
)
@click.option("--steps", type=click.IntRange(min=1), default=6, show_default=True, help="Steps to simulate.")
@click.option("--tflops", type=click.FloatRange(min=0, min_open=True), help="Achieved TFLOP/s of a rank [100].")
@click.option("--gbit", type=click.FloatRange(min=0, min_open=True), help="Gbit/s of a link, each way [100].")
@click.option("--latency-us", type=click.FloatRange(min=0), help="Latency of a message in µs [5].")
@click.option(
    "--agreement-us", type=click.FloatRange(min=0), help="What tensor slices take to agree on a task in µs [0]."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw a Gantt chart (.png or .svg).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def simulate(
    job_file: Path,
    overrides: tuple[str, ...],
    compare: str,
    run: Path | None,
    ranks: int | None,
    steps: int,
    tflops: float | None,
    gbit: float | None,
    latency_us: float | None,
    agreement_us: float | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Predict step time, waits and memory of JOB.toml; nothing is started and no MPI is needed.

    Times come from an emulated device's settings, from a run's log (--from), or from the model's FLOPs and bytes.
    Every schedule meets the same draws. The speedup is over 1F1B in fixed order.
    """
    from hpcpipe.analyze.recorded import record
    from hpcpipe.analyze.windows import AnalysisError
    from hpcpipe.events import LogError, open_run

    jobs = _load(job_file, overrides, compare, ranks)
    from hpcpipe.cli.faults import print_warnings

    print_warnings(jobs[1].warnings)
    machine_options = {"tflops": tflops, "gbit": gbit, "latency_us": latency_us}
    machine = _machine(machine_options)
    try:
        recording = record(open_run(run)) if run is not None else None
        error = _own_error(recording)
        agreement_ns = round(1e3 * (agreement_us or 0.0)) if jobs[0].parallel.tensor > 1 else 0
        predictions, assumptions = _predict(jobs, recording, machine, steps, agreement_ns)
        if plot is not None:
            _plot(predictions[1:], plot)
    except (LogError, AnalysisError, ValueError) as fault:
        _refuse(str(fault))
    except OSError as fault:
        _refuse(f"{fault.filename or 'picture'}: cannot be written: {fault.strerror or fault}")
    unused = [f"--{name.replace('_', '-')}" for name, value in machine_options.items() if value is not None]
    if unused and not _is_analytic(jobs[0], recording):
        click.echo(f"hpcpipe simulate: {', '.join(unused)} unused: times are not from FLOPs and bytes", err=True)
    baseline, *shown = predictions
    if agreement_us is not None and jobs[0].parallel.tensor == 1:
        click.echo("hpcpipe simulate: --agreement-us unused: with tensor = 1 nobody is asked", err=True)
    if as_json:
        _print_json(baseline, shown, assumptions, error)
    else:
        from hpcpipe.cli.prediction import print_predictions

        print_predictions(baseline, shown, assumptions, error)
        if plot is not None:
            click.echo(f"picture {plot}")


def _load(job_file: Path, overrides: Sequence[str], compare: str, ranks: int | None) -> "list[Job]":
    """Return the job under fixed 1F1B, as it stands, and under each schedule to compare."""
    from hpcpipe.job import JobError, load_job

    settings = list(overrides)
    faults: list[Fault] = []
    try:
        job = load_job(job_file, settings)
        if ranks is not None:
            mesh = job.parallel
            if ranks % (mesh.data * mesh.tensor):
                _refuse(f"--ranks {ranks} is not a multiple of data {mesh.data} x tensor {mesh.tensor}")
            settings += [f"parallel.pipeline={ranks // (mesh.data * mesh.tensor)}", "parallel.split=auto"]
    except JobError as error:
        faults += error.faults
    variants = [
        schedule_settings("1f1b:fixed:admission=as-given"),
        [],
    ]
    try:
        variants += [schedule_settings(each) for each in compare.split(",") if each.strip()]
    except ValueError as error:
        _refuse(f"--compare {error}")
    jobs = []
    for variant in variants if not faults else ():
        try:
            jobs.append(load_job(job_file, [*settings, *variant]))
        except JobError as error:
            faults += [fault for fault in error.faults if fault not in faults]
    if faults:
        from hpcpipe.cli.faults import print_faults

        print_faults(faults)
        sys.exit(ExitCode.INPUT)
    return jobs


def _machine(options: dict[str, float | None]) -> "Machine":
    from hpcpipe.simulate.costs import Machine

    return Machine(**{name: value for name, value in options.items() if value is not None})


def _is_analytic(job: "Job", recording: "Recording | None") -> bool:
    from hpcpipe.job.schema import Emulated

    return recording is None and not isinstance(job.device, Emulated)


def _predict(
    jobs: "Sequence[Job]", recording: "Recording | None", machine: "Machine", count: int, agreement_ns: int
) -> "tuple[list[Prediction], tuple[str, ...]]":
    """Simulate every job over the same steps, with a bar on a terminal."""
    from rich.progress import Progress

    from hpcpipe.analyze.prediction import predict
    from hpcpipe.cli.terminal import make_console

    steps = list(range(count)) if recording is None else list(recording.steps[-count:])
    predictions = []
    assumptions: tuple[str, ...] = ()
    with Progress(console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=len(jobs) * len(steps))
        for job in jobs:
            costs = _costs(job, recording, machine)
            assumptions = costs.assumptions
            agreed = agreement_ns if job.schedule.dispatch == "ready" else 0  # a fixed order is the same on all slices
            predictions.append(predict(job, costs, steps, agreement_ns=agreed, progress=lambda: bar.advance(task)))
    if agreement_ns:
        assumptions += (f"tensor slices agree {agreement_ns / 1e3:g} µs after a message, but in a fixed order",)
    return predictions, assumptions


def _own_error(recording: "Recording | None") -> float | None:
    """Return the median relative error of the simulated steps of the run itself."""
    from statistics import median

    errors = recording.own_errors() if recording is not None else []
    return median(map(abs, errors)) if errors else None


def _costs(job: "Job", recording: "Recording | None", machine: "Machine") -> "Costs":
    from hpcpipe.job.schema import Emulated
    from hpcpipe.simulate.costs import emulated_costs

    if isinstance(job.device, Emulated):
        costs = emulated_costs(job)
    else:
        from hpcpipe.train.sizes import analytic_costs_of

        costs = analytic_costs_of(job, machine)
    return costs if recording is None else recording.costs_for(job, costs.activation_bytes)


def _plot(predictions: "Sequence[Prediction]", path: Path) -> None:
    from hpcpipe.analyze import plot_gantt
    from hpcpipe.analyze.windows import AnalysisError

    for prediction in predictions:
        if prediction.log is None:
            raise AnalysisError("too many tasks to draw; choose fewer --steps or a smaller job")
        last = int(prediction.log.ranks[0].steps.step[-1])
        where = path if len(predictions) == 1 else path.with_stem(f"{path.stem}-{prediction.file_name}")
        plot_gantt(prediction.log, where, (last, last))


def _print_json(
    baseline: "Prediction", shown: "Sequence[Prediction]", assumptions: Sequence[str], error: float | None
) -> None:
    import json

    from hpcpipe.analyze.prediction import FORMAT, SCHEMA_VERSION

    document = {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "results": [prediction.to_json(baseline.step_ns) for prediction in shown],
        "baseline": baseline.to_json(baseline.step_ns),
        "assumptions": list(assumptions),
        "own_error": error,
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _refuse(message: str) -> None:
    click.echo("\n".join(f"hpcpipe simulate: {line}" for line in message.splitlines()), err=True)
    sys.exit(ExitCode.INPUT)
