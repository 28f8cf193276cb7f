"""Be one rank of a job that a launcher has started: agree on the run directory, train, report on rank 0."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.cli.progress import make_reporter
from hpcpipe.cli.report import print_outcome
from hpcpipe.cli.start import make_directory
from hpcpipe.cluster import environment
from hpcpipe.exit_code import ExitCode
from hpcpipe.runtime import FailureGuard, World
from hpcpipe.train import Origin, ReplayError, read_replay, train

if TYPE_CHECKING:
    from hpcpipe.job import Job


def run_rank(
    job: "Job", given: environment.World, *, run_directory: Path | None, quiet: bool, replay: Path | None = None
) -> int:
    """Train on this rank and return its exit code, the same on all ranks."""
    # Before MPI starts: afterwards no process may be forked.
    revision = _git_revision() if given.rank == 0 else ""
    world = World()
    with FailureGuard(world.comm, place="outside the training", stage=-1, host=world.host):
        if (problem := _mismatch(job, given, world.size)) is not None:
            if given.rank == 0:
                print(f"hpcpipe: {problem}", file=sys.stderr)
            return ExitCode.ENVIRONMENT
        try:
            order = None if replay is None else read_replay(job, replay, world)
        except ReplayError as error:
            if given.rank == 0:
                print(f"hpcpipe: {error}", file=sys.stderr)
            return ExitCode.INPUT
        facts = world.share([_directory(job, run_directory), revision] if world.rank == 0 else None)
        if facts[0] is None:
            return ExitCode.ENVIRONMENT
        directory = Path(facts[0])
        if order is not None and world.rank == 0 and not quiet:
            print(f"replays the order of {order.source}", flush=True)
        outcome = train(
            job,
            world=world,
            run_directory=directory,
            origin=Origin(environment.job_id() or "", environment.restart_count(), facts[1]),
            reporter=make_reporter(job, quiet=quiet) if world.rank == 0 else None,
            replay=order,
        )
        if world.rank == 0:
            print_outcome(job, outcome, directory, quiet=quiet)
    return outcome.exit_code


def _directory(job: "Job", run_directory: Path | None) -> str | None:
    made = make_directory(job, run_directory)
    return None if made is None else str(made)


def _mismatch(job: "Job", given: environment.World, size: int) -> str | None:
    """Return what is wrong with the ranks, or None."""
    if size == 1 and given.size > 1:
        return (
            f"{given.launcher} started {given.size} tasks, but each is a world of its own: the launcher and MPI do not "
            "speak the same process management interface. Under Slurm try `srun --mpi=pmi2` (MPICH, Intel MPI) or "
            "`srun --mpi=pmix` (Open MPI); `srun --mpi=list` shows what there is"
        )
    if size != job.parallel.ranks:
        wanted = job.parallel
        return (
            f"{size} ranks were started, but [parallel] asks for {wanted.ranks} = pipeline {wanted.pipeline} * "
            f"data {wanted.data} * tensor {wanted.tensor}; start {wanted.ranks} ranks or change [parallel]"
        )
    return None


def _git_revision() -> str:
    """Return the revision of the source tree that hpcpipe runs from, or nothing."""
    tree = Path(__file__).resolve().parents[2]
    if not (tree / ".git").exists():  # installed; whatever repository lies further up is not ours
        return ""
    command = ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
