"""`hpcpipe run`: train a job on the ranks it is given, or start them itself."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpcpipe.cli.terminal import say, suggest
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.cluster.environment import World

EXAMPLES = """\b
Examples:
  hpcpipe run jobs/quickstart.toml
  hpcpipe run jobs/quickstart.toml --set job.steps=20 --set schedule.hint=bf
  hpcpipe run jobs/quickstart.toml --replay runs/quickstart/latest
  hpcpipe run job.toml --resume auto
  srun hpcpipe run job.toml
"""


@click.command(epilog=EXAMPLES)
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), help="Ranks to start.", show_default="the product of [parallel]"
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), metavar="DIR", help="Write the run here.", show_default="runs/NAME/ID"
)
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Run the tasks in the order that the event log of RUN holds.",
)
@click.option(
    "--resume",
    metavar="auto|PATH",
    help="Go on from a checkpoint: PATH, or the newest good one of this run directory or job. A Slurm job that was "
    "requeued does so by itself.",
)
@click.option("--broadcast", is_flag=True, help="Let rank 0 read JOB.toml for all ranks of the launcher.")
@click.option("--dry-run", is_flag=True, help="Show stages, caps and sizes; start nothing.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor report.")
def run(
    job_file: Path,
    overrides: tuple[str, ...],
    ranks: int | None,
    run_dir: Path | None,
    replay: Path | None,
    resume: str | None,
    broadcast: bool,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Train the model that JOB.toml describes.

    Under srun or mpiexec the ranks of that launcher are used; started plainly, the ranks of [parallel] are started
    here.
    """
    from hpcpipe.cli.start import CLAIMED_VARIABLE
    from hpcpipe.cluster import environment
    from hpcpipe.job import JobError, load_job

    given = environment.world()
    speaks = given is None or given.rank == 0
    text = None
    if broadcast and given is not None and not dry_run:
        from hpcpipe.cli.rank import read_for_all

        text = read_for_all(job_file, given)
    try:
        job = load_job(job_file, overrides, ranks=ranks, text=text)
    except JobError as error:
        if speaks:
            from hpcpipe.cli.faults import print_faults

            print_faults(error.faults)
        _leave(given, ExitCode.INPUT)
    if speaks and not os.environ.get(CLAIMED_VARIABLE):  # who started these ranks has said it
        from hpcpipe.cli.faults import print_warnings

        print_warnings(job.warnings)
    if replay is not None and given is None:
        from hpcpipe.events.recording import ReplayError, check_recorded

        try:
            replay = check_recorded(job, replay)
        except ReplayError as error:
            say(f"hpcpipe: {error}; nothing was started", err=True)
            sys.exit(ExitCode.INPUT)
    if replay is not None and resume is not None:
        if speaks:
            say("hpcpipe: --replay begins with the first step, so it cannot go with --resume", err=True)
        _leave(given, ExitCode.INPUT)
    if dry_run:
        if speaks:
            from hpcpipe.cli.terminal import working

            with working("loading torch for the model's sizes"):
                from hpcpipe.cli.layout import print_layout
            print_layout(job)
            suggest("to train it", "run", job_file, overrides=overrides)
        sys.exit(ExitCode.DONE)
    if given is not None:
        from hpcpipe.cli.rank import run_rank
        from hpcpipe.cluster.starting import leave_word

        code = run_rank(job, given, run_directory=run_dir, quiet=quiet, replay=replay, resume=resume)
        if speaks:
            leave_word(str(int(code)))
        sys.exit(code)
    words = [] if replay is None else ["--replay", str(replay)]
    from hpcpipe.cli.resume import find_alone, goes_on, is_done
    from hpcpipe.cli.start import start_ranks

    start = find_alone(job, resume, run_dir)
    if is_done(job, start, speaks=True):
        sys.exit(ExitCode.DONE)
    words += [] if start is None else ["--resume", str(start.folder)]
    continues = goes_on(job, resume, run_dir, start)
    sys.exit(start_ranks(job, job_file, run_dir, overrides=overrides, words=words, goes_on=continues, quiet=quiet))


def _leave(given: "World | None", code: ExitCode) -> NoReturn:
    if given is not None:
        from hpcpipe.cluster.starting import stay_a_moment

        stay_a_moment(given, code)
    sys.exit(code)
