"""`hpcpipe run`: train a job on the ranks it is given, or start them itself."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hpcpipe.cluster.environment import World as GivenRanks
    from hpcpipe.job import Job

EXIT_INPUT, EXIT_ENVIRONMENT = 2, 3


@dataclass(frozen=True, slots=True)
class _Options:
    job_file: Path
    overrides: tuple[str, ...]
    ranks: int | None
    run_directory: Path | None
    quiet: bool

    def arguments(self, run_directory: Path) -> list[str]:
        """Return the command line of a rank."""
        settings = [word for override in self.overrides for word in ("--set", override)]
        return ["run", str(self.job_file), *settings, "--run-dir", str(run_directory), *(["--quiet"] if self.quiet else [])]


@click.command()
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option("-n", "--ranks", type=click.IntRange(min=1), help="Ranks to start; must be the product of [parallel].")
@click.option("--run-dir", "run_directory", type=click.Path(path_type=Path), help="Write the run here, not to runs/NAME/ID.")
@click.option("--dry-run", is_flag=True, help="Show stages, caps and sizes; start nothing.")
@click.option("--quiet", is_flag=True, help="No progress and no report on the terminal.")
def run(
    job_file: Path, overrides: tuple[str, ...], ranks: int | None, run_directory: Path | None, dry_run: bool, quiet: bool
) -> None:
    """Train the model that JOB.toml describes.

    Under srun or mpiexec the ranks of that launcher are used; started plainly, the ranks of [parallel] are started here.

    \b
    Examples:
      hpcpipe run jobs/quickstart.toml
      hpcpipe run jobs/quickstart.toml --set job.steps=20 --set schedule.dispatch=fixed --set schedule.hint=1f1b
      srun hpcpipe run job.toml
    """
    from hpcpipe.cluster import environment
    from hpcpipe.job import JobError, load_job

    options = _Options(job_file, overrides, ranks, run_directory, quiet)
    given = environment.world()
    try:
        job = load_job(job_file, overrides, ranks=ranks)
    except JobError as error:
        if given is None or given.rank == 0:
            from hpcpipe.cli.faults import print_faults

            print_faults(error.faults)
        sys.exit(EXIT_INPUT)
    if dry_run:
        if given is None or given.rank == 0:
            from hpcpipe.cli.layout import print_layout

            print_layout(job)
        sys.exit(0)
    sys.exit(_start_ranks(job, options) if given is None else _run_rank(job, options, given))


def _start_ranks(job: "Job", options: _Options) -> int:
    """Start the ranks and wait for them."""
    from hpcpipe.cluster import environment, launch
    from hpcpipe.train.progress import COLUMNS_VARIABLE, terminal_columns
    from hpcpipe.train.run_directory import make_run_directory

    try:
        directory = options.run_directory or make_run_directory(
            Path(job.run.run_dir), job.run.name, job_id=environment.job_id(), restart=environment.restart_count()
        )
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        click.echo(f"hpcpipe: cannot make the run directory: {error}; choose another with --run-dir", err=True)
        return EXIT_ENVIRONMENT
    columns = terminal_columns()
    extra = {COLUMNS_VARIABLE: str(columns)} if columns else None
    command = [sys.executable, "-m", "hpcpipe", *options.arguments(directory)]
    return launch.launch(command, job.parallel.ranks, directory, extra)


def _run_rank(job: "Job", options: _Options, given: "GivenRanks") -> int:
    """Be one rank of a job that a launcher has started."""
    from hpcpipe.cluster import environment
    from hpcpipe.train.run_directory import make_run_directory

    revision = _git_revision() if given.rank == 0 else ""  # before MPI starts: afterwards no process may be forked
    from hpcpipe.runtime import World

    world = World()
    if (problem := _mismatch(job, given, world.size)) is not None:
        if given.rank == 0:
            click.echo(f"hpcpipe: {problem}", err=True)
        return EXIT_ENVIRONMENT
    facts = None
    if world.rank == 0:
        try:
            directory = options.run_directory or make_run_directory(
                Path(job.run.run_dir), job.run.name, job_id=environment.job_id(), restart=environment.restart_count()
            )
            directory.mkdir(parents=True, exist_ok=True)
            facts = [str(directory), revision]
        except OSError as error:
            click.echo(f"hpcpipe: cannot make the run directory: {error}; choose another with --run-dir", err=True)
    facts = world.share(facts)
    if facts is None:
        return EXIT_ENVIRONMENT
    directory, revision = Path(facts[0]), facts[1]
    return _train(job, options, world, directory, revision)


def _train(job: "Job", options: _Options, world: object, directory: Path, revision: str) -> int:
    from hpcpipe.cli.layout import announce
    from hpcpipe.cli.report import print_outcome
    from hpcpipe.cluster import environment
    from hpcpipe.runtime import World
    from hpcpipe.train import Origin, train

    assert isinstance(world, World)
    origin = Origin(environment.job_id() or "", environment.restart_count(), revision)
    quiet = options.quiet
    outcome = train(
        job,
        world=world,
        run_directory=directory,
        origin=origin,
        quiet=quiet,
        announce=lambda layout, rank: None if quiet else announce(job, layout, rank),
    )
    if world.rank == 0:
        print_outcome(job, outcome, directory, quiet=quiet)
    return outcome.exit_code


def _mismatch(job: "Job", given: "GivenRanks", size: int) -> str | None:
    """Return what is wrong with the ranks, or None."""
    if size == 1 and given.size > 1:
        return (
            f"{given.launcher} started {given.size} tasks, but each is a world of its own: the launcher and MPI do not speak the "
            "same process management interface. Under Slurm try `srun --mpi=pmi2` (MPICH, Intel MPI) or `srun --mpi=pmix` "
            "(Open MPI); `srun --mpi=list` shows what there is"
        )
    if size != job.parallel.ranks:
        sizes = job.parallel
        return (
            f"{size} ranks were started, but [parallel] asks for {sizes.ranks} = pipeline {sizes.pipeline} * data {sizes.data} * "
            f"tensor {sizes.tensor}; start {sizes.ranks} ranks or change [parallel]"
        )
    return None


def _git_revision() -> str:
    """Return the revision of the source tree that hpcpipe runs from, or nothing."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
