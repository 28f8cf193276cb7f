"""`hpcpipe simulate`: what a job's steps would cost, under its own schedule and under others, here or elsewhere."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.cli.output_file import Picture
from hpcpipe.cli.terminal import refuse, say, suggest
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.analyze.recorded import Recording
    from hpcpipe.api import Simulation
    from hpcpipe.job import Job
    from hpcpipe.simulate.costs import Machine

EXAMPLES = """\b
Examples:
  hpcpipe simulate job.toml --compare 1f1b:fixed,zbv:fixed,bf,kfkb:k=4
  hpcpipe simulate job.toml --from runs/quickstart/latest --compare zb-h1
  hpcpipe simulate job.toml --ranks 64 --tflops 120 --gbit 200 --plot p.png
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
    "-n",
    "--ranks",
    type=click.IntRange(min=1),
    help="Another number of ranks: a longer or shorter pipeline.",
    show_default="the job's",
)
@click.option("--steps", type=click.IntRange(min=1), default=6, show_default=True, help="Steps to simulate.")
@click.option(
    "--tflops", type=click.FloatRange(min=0, min_open=True), help="Achieved TFLOP/s of a rank.", show_default="100"
)
@click.option(
    "--gbit", type=click.FloatRange(min=0, min_open=True), help="Gbit/s of a link, each way.", show_default="100"
)
@click.option("--latency-us", type=click.FloatRange(min=0), help="Latency of a message in µs.", show_default="5")
@click.option(
    "--agreement-us",
    type=click.FloatRange(min=0),
    help="What tensor slices take to agree on a task in µs.",
    show_default="0",
)
@click.option(
    "--plot",
    type=Picture(),
    metavar="FILE",
    help="Draw a Gantt chart of each schedule (.png or .svg).",
)
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
    from hpcpipe.analyze.windows import AnalysisError
    from hpcpipe.api.predicting import is_analytic, record_run
    from hpcpipe.events import LogError

    jobs = _load(job_file, overrides, compare, ranks)
    from hpcpipe.cli.faults import print_warnings

    print_warnings(jobs[1].warnings)
    machine_options = {"tflops": tflops, "gbit": gbit, "latency_us": latency_us}
    try:
        recording = record_run(run)
        found = _simulate(jobs, recording, _machine(machine_options), steps, agreement_us or 0.0)
        pictures = [] if plot is None else found.plot(plot)
    except (LogError, AnalysisError, ValueError) as fault:
        refuse(str(fault))
    except OSError as fault:
        refuse(f"{fault.filename or 'picture'}: cannot be written: {fault.strerror or fault}")
    unused = [f"--{name.replace('_', '-')}" for name, value in machine_options.items() if value is not None]
    if unused and not is_analytic(jobs[0], recording):
        say(f"hpcpipe: {', '.join(unused)} unused: times are not from FLOPs and bytes", err=True)
    if agreement_us is not None and jobs[0].parallel.tensor == 1:
        say("hpcpipe: --agreement-us unused: with tensor = 1 nobody is asked", err=True)
    if as_json:
        import json

        click.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        from hpcpipe.cli.prediction import print_predictions

        print_predictions(found.baseline, found.predictions, found.assumptions, found.own_error)
        for picture in pictures:
            say(f"picture {picture}")
        _suggest_the_fastest(found, job_file, overrides)


def _suggest_the_fastest(found: "Simulation", job_file: Path, overrides: Sequence[str]) -> None:
    """Print how to train under the suggestion, or under a schedule of the table where that is faster."""
    from hpcpipe.cli.prediction import changes
    from hpcpipe.job import load_job

    own, suggestion = found.predictions[0], found.suggestion
    best = min([*found.predictions, found.baseline], key=lambda each: each.step_ns)
    what, job, more = f"to train under {best.name}", best.job, tuple[str, ...]()
    if suggestion is not None and suggestion.step_ns <= best.step_ns:
        gain = f"{suggestion.step_ns / 1e6:.2f} ms a step, {suggestion.speedup:.3f}x of {own.name}"
        what, job, more = f"suggestion ({gain}, stash {suggestion.peak_stash:g})", own.job, suggestion.settings
    settings = [*overrides, *changes(job, load_job(job_file, overrides)), *more]
    suggest(what, "run", job_file, overrides=settings)


def _load(job_file: Path, overrides: Sequence[str], compare: str, ranks: int | None) -> "list[Job]":
    from hpcpipe.api.predicting import schedules
    from hpcpipe.job import JobError

    words = [each for each in compare.split(",") if each.strip()]
    try:
        return schedules(job_file, overrides, compare=words, ranks=ranks)
    except JobError as error:
        from hpcpipe.cli.faults import print_faults

        print_faults(error.faults)
        sys.exit(ExitCode.INPUT)
    except ValueError as error:
        refuse(str(error))


def _machine(options: dict[str, float | None]) -> "Machine":
    from hpcpipe.simulate.costs import Machine

    return Machine(**{name: value for name, value in options.items() if value is not None})


def _simulate(
    jobs: "Sequence[Job]", recording: "Recording | None", machine: "Machine", steps: int, agreement_us: float
) -> "Simulation":
    """Simulate, with a bar on a terminal."""
    from rich.progress import Progress

    from hpcpipe.api.predicting import simulate_jobs, steps_of
    from hpcpipe.cli.terminal import make_console

    with Progress(console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("simulating", total=len(jobs) * len(steps_of(recording, steps)))
        return simulate_jobs(
            jobs,
            recording=recording,
            machine=machine,
            steps=steps,
            agreement_us=agreement_us,
            progress=lambda: bar.advance(task),
        )
