"""`hpcpipe tune`: find the group k and the micro-batch size that suit a job, by short runs of its own."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.cli.output_file import Picture
from hpcpipe.cli.terminal import refuse, say, suggest
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.job import Job
    from hpcpipe.tune import Space
    from hpcpipe.tune.offline import Tuning

EXAMPLES = """\b
Examples:
  hpcpipe tune job.toml --memory-limit "8 GiB"
  hpcpipe tune job.toml --write
  hpcpipe tune job.toml --why --all --json
"""

WARM_UP = 2
"""Steps of every run that are not counted: first messages, first pages of memory."""

_KFKB = ('schedule.hint="kfkb"', 'schedule.in_flight="equal-memory"', 'schedule.stash="equal-memory"')


@click.command(epilog=EXAMPLES)
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option(
    "--memory-limit", metavar="SIZE", help='Most that a rank may hold, such as "8 GiB".', show_default="the job's"
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=8, show_default=True, help="Steps of a run that are measured."
)
@click.option("--runs", type=click.IntRange(min=1), default=8, show_default=True, help="Most candidates that are run.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Runs of each of the best, in turn."
)
@click.option("--only-k", is_flag=True, help="Keep the micro-batch size of the job.")
@click.option("--write", is_flag=True, help="Write the best into a copy of the job file.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Name of that copy; implies --write.",
    show_default="JOB.tuned.toml",
)
@click.option("--force", is_flag=True, help="Write over a copy that is there.")
@click.option("--why", is_flag=True, help="Say why the others were left out.")
@click.option("--all", "everything", is_flag=True, help="Show all candidates, and with --why all others.")
@click.option("--plot", type=Picture(), metavar="FILE", help="Draw the candidates (.png or .svg).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def tune(
    job_file: Path,
    overrides: tuple[str, ...],
    memory_limit: str | None,
    steps: int,
    runs: int,
    rounds: int,
    only_k: bool,
    write: bool,
    output: Path | None,
    force: bool,
    why: bool,
    everything: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Find the best groups of kFkB for JOB.toml: k micro-batches of size b, within a limit on memory.

    A micro-batch's messages hide behind the work on the others of its group, so larger groups ride out a slow network
    and hold more memory. Short runs of JOB.toml are made; the batch of a step stays the same. The job file is never
    changed.
    """
    from hpcpipe.cluster import environment
    from hpcpipe.tune import NoGroupingFitsError
    from hpcpipe.tune.offline import CannotTuneError

    if environment.world() is not None:
        refuse("this starts the job's ranks by itself; start it without srun or mpiexec, in the job's allocation")
    settings = [*overrides, *([f'tune.memory_limit="{memory_limit}"'] if memory_limit else [])]
    job = _load(job_file, settings)
    target = _target(job_file, output) if write or output is not None else None
    if target is not None and target.exists() and not force:
        refuse(f"{target} is there already; choose another --output, or --force to write over it")
    try:
        space = _space(job, only_k=only_k)
        tuning = _tune(job, space, steps=steps, runs=runs, rounds=rounds)
        if target is not None:
            _write(job_file, job, tuning, settings, target, force=force)
        if plot is not None:
            from hpcpipe.tune.picture import draw

            draw(tuning, plot, title=f"{job.run.name}: groups of kFkB", limit=job.tune.limit_bytes)
    except NoGroupingFitsError as error:
        refuse(f"{error}; raise the memory limit, or use more stages, more replicas or smaller sequences")
    except CannotTuneError as error:
        refuse(f"{error}; see the messages above", ExitCode.RANK_FAILED)
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename or 'the output'} cannot be written: {error.strerror or error}")
    from hpcpipe.cli.tuning import print_json, print_tuning

    if as_json:
        print_json(job, tuning, target)
    else:
        print_tuning(job, tuning, why=why, everything=everything)
        if plot is not None:
            say(f"picture {plot}")
        if target is not None:
            suggest(f"written {target}", "run", target)
        else:
            from hpcpipe.cli.prediction import changes
            from hpcpipe.job import load_job
            from hpcpipe.tune import with_grouping

            best = with_grouping(job, tuning.best)
            more = changes(best, load_job(job_file, settings), ("schedule", "batch", "device"))
            suggest("to train with it", "run", job_file, overrides=[*settings, *more])


def _load(job_file: Path, settings: Sequence[str]) -> "Job":
    """Return the job with kfkb as its hint, whatever it is in the file; grouping by itself would disturb the runs."""
    from hpcpipe.cli.faults import print_faults, print_warnings
    from hpcpipe.job import JobError, load_job

    try:
        own = load_job(job_file, settings)
        more = [*_KFKB, *(["schedule.k=1"] if own.schedule.hint != "kfkb" else [])]
        more += ['tune.grouping="off"', *_defaults(own)]
        job = load_job(job_file, [*settings, *more])
    except JobError as error:
        print_faults(error.faults)
        sys.exit(ExitCode.INPUT)
    print_warnings(job.warnings)
    return job


def _defaults(job: "Job") -> list[str]:
    """Return settings that take back those of a live grouping, which would have no effect without it."""
    from hpcpipe.job.tune import Tune

    fields = Tune.model_fields
    keys = [key for key in ("interval", "trial", "margin") if getattr(job.tune, key) != fields[key].default]
    return [f"tune.{key}={fields[key].default}" for key in keys] + ['tune.microbatch_size="fixed"']


def _target(job_file: Path, output: Path | None) -> Path:
    target = output or job_file.with_suffix(".tuned.toml")
    if target.absolute().parent != job_file.absolute().parent:
        refuse(f"--output {target}: paths in a job start at its folder, so the copy must lie in {job_file.parent}")
    return target


def _space(job: "Job", *, only_k: bool) -> "Space":
    from hpcpipe.train.memory import stage_memory
    from hpcpipe.tune import batch_of, make_space

    return make_space(
        batch=batch_of(job),
        stages=job.parallel.pipeline,
        memory=stage_memory(job),
        limit=job.tune.limit_bytes,
        dispatch=job.schedule.dispatch,
        sizes=[job.batch.microbatch_size] if only_k else None,
    )


def _tune(job: "Job", space: "Space", *, steps: int, runs: int, rounds: int) -> "Tuning":
    """Run candidates in folders that vanish, with a line of progress on a terminal."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from hpcpipe.cli.terminal import make_console
    from hpcpipe.cli.tune_run import run_once
    from hpcpipe.job.planned import schedule_of
    from hpcpipe.tune import Grouping, Report, batch_of, grouping_of
    from hpcpipe.tune.offline import tune as tune_offline

    console = make_console(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="hpcpipe-tune-") as folder,
        Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task("", total=None)
        done: list[Grouping] = []

        def measure(grouping: Grouping) -> list[Report] | None:
            done.append(grouping)
            words = f"run {len(done)}: {grouping}, {steps + WARM_UP} steps"
            bar.update(task, description=words)
            if not sys.stderr.isatty():
                click.echo(words, err=True)
            return run_once(job, grouping, Path(folder) / str(len(done)), steps=steps, warm_up=WARM_UP)

        return tune_offline(
            space,
            base=schedule_of(job),
            batch=batch_of(job),
            start=grouping_of(job),
            measure=measure,
            runs=runs,
            rounds=rounds,
        )


def _write(job_file: Path, job: "Job", tuning: "Tuning", settings: Sequence[str], target: Path, *, force: bool) -> None:
    """Write the copy, once it is known to load."""
    from hpcpipe.job import JobError, load_job
    from hpcpipe.job.overrides import parse_overrides
    from hpcpipe.tune import with_grouping
    from hpcpipe.tune.job_copy import with_job, write_beside

    overrides, _ = parse_overrides(settings)
    text = with_job(job_file.read_text(encoding="utf-8"), with_grouping(job, tuning.best), overrides=overrides)
    try:
        load_job(target, text=text)
    except JobError as error:
        raise ValueError(f"the copy would not be a good job: {error}") from None
    write_beside(target, text, replace=force)
