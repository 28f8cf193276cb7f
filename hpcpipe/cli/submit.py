"""`hpcpipe submit`: a job file to a batch script, and the script to Slurm; works on a login node without MPI."""

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.cli.terminal import refuse, say
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.job import Job

EXAMPLES = """\b
Examples:
  hpcpipe submit job.toml --dry-run        shows the script
  hpcpipe submit job.toml                  prints the job's number
  hpcpipe submit job.toml --wait           follows the log until the job ends
  hpcpipe submit job.toml --sweep optimizer.lr=1e-3,3e-4 --sweep job.seed=0,1
  hpcpipe submit eval.toml --after 4711    once job 4711 has ended well
  hpcpipe submit eval.toml --after any:4711   however it has ended
"""
OPENING, CLOSING = "[{(", "]})"


@click.command(epilog=EXAMPLES)
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="KEY=V1,V2", help="A job array over these values; repeatable."
)
@click.option(
    "--after", multiple=True, metavar="[KIND:]ID", help="Start after job ID: ok (default), any, notok, start."
)
@click.option("--wait", is_flag=True, help="Follow the log until the job has ended, and end with its exit code.")
@click.option("--dry-run", is_flag=True, help="Print the script; submit and write nothing.")
def submit(
    job_file: Path,
    overrides: tuple[str, ...],
    sweeps: tuple[str, ...],
    after: tuple[str, ...],
    wait: bool,
    dry_run: bool,
) -> None:
    """Render the batch script that [slurm] of JOB.toml asks for and hand it to sbatch."""
    from hpcpipe.cluster.render import Submission, UnwritableError, render
    from hpcpipe.cluster.submit import SlurmError, dependency, follow
    from hpcpipe.cluster.submit import submit as hand_over

    elements = tuple(product(*(_values(sweep) for sweep in sweeps))) if sweeps else ()
    dependencies = [dependency(text) for text in after]
    for text, read in zip(after, dependencies, strict=True):
        if read is None:
            raise click.UsageError(f"--after {text!r} is no job: write 4711, or any:4711, notok:4711 or start:4711")
    job = _load(job_file, overrides, elements)
    wanted = Submission(
        job=job,
        job_file=job_file.absolute(),
        folder=Path.cwd(),
        python=Path(sys.executable),
        overrides=overrides,
        sweep=elements,
        after=tuple(filter(None, dependencies)),
    )
    if job.slurm.stage_to and not any((wanted.environment / mark).exists() for mark in ("pyvenv.cfg", "conda-meta")):
        refuse(
            f"stage_to copies a Python environment, but {wanted.environment} is none: install hpcpipe into one "
            "(python -m venv, conda), or leave stage_to out",
            ExitCode.INPUT,
        )
    try:
        script = render(wanted)
    except UnwritableError as error:
        refuse(str(error), ExitCode.INPUT)
    if dry_run:
        sys.stdout.buffer.write(script.encode())
        return
    try:
        wanted.log_folder.mkdir(parents=True, exist_ok=True)  # without it Slurm ends the job without a word
    except OSError as error:
        refuse(f"cannot make the log's folder: {error}; set [job] run_dir to another place", ExitCode.ENVIRONMENT)
    try:
        job_id = hand_over(script)
    except SlurmError as error:
        refuse(f"{error}\n`sinfo` says whether Slurm answers; --dry-run prints the script", ExitCode.ENVIRONMENT)
    click.echo(job_id)
    log = wanted.log_folder / wanted.log.name.replace("%j", job_id).replace("%A", job_id).replace("%a", "*")
    say(f"log  {log}", err=True)
    say(f"to see its state: squeue --job {job_id}; to end it: scancel {job_id}", err=True)
    if wait:
        try:
            sys.exit(follow(job_id, log, say=lambda line: say(f"hpcpipe: {line}", err=True)))
        except KeyboardInterrupt:
            say(f"hpcpipe: job {job_id} stays in the queue; scancel {job_id} ends it", err=True)
            sys.exit(ExitCode.INTERRUPTED)


def _load(job_file: Path, overrides: tuple[str, ...], elements: tuple[tuple[str, ...], ...]) -> "Job":
    """Return the job; every element of a sweep must be right too, and ask Slurm for the same."""
    from hpcpipe.cli.faults import print_faults, print_warnings
    from hpcpipe.job import Fault, JobError, load_job
    from hpcpipe.job.faults import of_option

    jobs, faults = [], list[Fault]()
    for element in elements or ((),):
        try:
            jobs.append(load_job(job_file, [*overrides, *element]))
        except JobError as error:
            options = [f"--sweep {setting}" for setting in element]
            found = [of_option(fault, options, after=len(overrides)) for fault in error.faults]
            faults += [fault for fault in found if fault not in faults]
    if faults:
        print_faults(faults)
        sys.exit(ExitCode.INPUT)
    print_warnings(jobs[0].warnings)
    for element, job in zip(elements, jobs, strict=False):
        first = jobs[0]
        if (job.slurm, job.parallel.ranks, job.run.name) != (first.slurm, first.parallel.ranks, first.run.name):
            refuse(
                f"the elements of a job array share name, ranks and [slurm], but {' '.join(element)} changes them; "
                "submit it as a job of its own",
                ExitCode.INPUT,
            )
    return jobs[0]


def _values(sweep: str) -> list[str]:
    """Return `key=v1`, `key=v2`, … of `key=v1,v2,…`; commas in quotes and brackets belong to a value."""
    key, equals, values = sweep.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--sweep {sweep!r} lists no values: write TABLE.KEY=V1,V2")
    found, depth, quoted = [""], 0, ""
    for char in values:
        if quoted:
            quoted = "" if char == quoted else quoted
        elif char in "\"'":
            quoted = char
        depth += 0 if quoted else (char in OPENING) - (char in CLOSING)
        if char == "," and depth == 0 and not quoted:
            found.append("")
        else:
            found[-1] += char
    if any(not value.strip() for value in found):
        raise click.UsageError(f"--sweep {sweep!r} has an empty value")
    return [f"{key}={value.strip()}" for value in found]
