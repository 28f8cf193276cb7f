"""Be one rank of a job that a launcher has started: agree on the run directory, train, report on rank 0."""

import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.cli.start import make_directory
from hpcpipe.cluster import environment
from hpcpipe.cluster.meeting import exchange, meet
from hpcpipe.cluster.placement import ADVICE_PMI, Seat, judge_gpus, judge_world
from hpcpipe.cluster.starting import explained
from hpcpipe.exit_code import ExitCode
from hpcpipe.runtime.stop import StopWish

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.job import Job


def run_rank(
    job: "Job",
    given: environment.World,
    *,
    run_directory: Path | None,
    quiet: bool,
    replay: Path | None = None,
    resume: str | None = None,
) -> int:
    """Train on this rank and return its exit code, the same on all ranks."""
    with StopWish(lambda number: os._exit(128 + number)) as early:  # one that comes while MPI and torch load counts too
        # Before MPI starts: afterwards no process may be forked.
        revision = _git_revision() if given.rank == 0 else ""
        with explained(_if_mpi_dies(given)) if given.rank == 0 else nullcontext():
            comm = meet()
        if (problem := _problem(job, given, comm)) is not None:
            if given.rank == 0:
                print(f"hpcpipe: {problem}", file=sys.stderr)
            return ExitCode.ENVIRONMENT
        return _train(job, early, run_directory, replay, revision, resume, quiet=quiet)


def _train(
    job: "Job",
    early: StopWish,
    run_directory: Path | None,
    replay: Path | None,
    revision: str,
    resume: str | None,
    *,
    quiet: bool,
) -> int:
    # Here, because torch takes seconds to import and ranks that do not fit the job are told so without it.
    from hpcpipe.cli.progress import make_reporter
    from hpcpipe.cli.report import print_outcome
    from hpcpipe.cli.resume import CheckpointError, find_together, goes_on, is_done
    from hpcpipe.runtime import FailureGuard, World
    from hpcpipe.train import Origin, ReplayError, read_replay, train

    world = World()
    with FailureGuard(world.comm, place="outside the training", stage=-1, host=world.host):
        try:
            order = None if replay is None else read_replay(job, replay, world)
        except ReplayError as error:
            if world.rank == 0:
                print(f"hpcpipe: {error}", file=sys.stderr)
            return ExitCode.INPUT
        problems = [problem for problem in world.collect(_wrong_inside(job, world.rank)) if problem]
        if problems:
            if world.rank == 0:
                print(f"hpcpipe: {problems[0]}", file=sys.stderr)
            return ExitCode.INPUT
        try:
            start = find_together(job, resume, run_directory, world)
        except CheckpointError as error:
            if world.rank == 0:
                print(f"hpcpipe: {error}; nothing was started", file=sys.stderr)
            return ExitCode.INPUT
        if is_done(job, start, speaks=world.rank == 0):
            return ExitCode.DONE
        may_exist = goes_on(job, resume, run_directory, start)
        facts = world.share([_directory(job, run_directory, may_exist), revision] if world.rank == 0 else None)
        if facts[0] is None:
            return ExitCode.ENVIRONMENT
        directory = Path(facts[0])
        if order is not None and world.rank == 0 and not quiet:
            print(f"replays the order of {order.source}", flush=True)
        if start is not None and world.rank == 0 and not quiet:
            print(f"goes on after step {start.step} of {start.folder}", flush=True)
        outcome = train(
            job,
            world=world,
            run_directory=directory,
            origin=Origin(environment.job_id() or "", environment.restart_count(), facts[1]),
            reporter=make_reporter(job, quiet=quiet) if world.rank == 0 else None,
            replay=order,
            early=early,
            resume=start,
        )
        if world.rank == 0:
            print_outcome(job, outcome, directory, quiet=quiet)
    return outcome.exit_code


def _wrong_inside(job: "Job", rank: int) -> str:
    """Return what is wrong with the data, or with a model of the user's own, as far as only a look inside can tell."""
    if job.device.kind == "emulated":
        return ""
    from hpcpipe.train.batches import problem_of_records
    from hpcpipe.train.own_model import problem_with

    return problem_of_records(job) or problem_with(job, opens_texts=rank == 0)


def _if_mpi_dies(given: environment.World) -> str:
    served = environment.slurm_mpi()
    how = f" (srun --mpi={served})" if served and given.launcher == "slurm" else ""
    return f"hpcpipe: MPI has ended rank 0 while it started under {given.launcher}{how}; {ADVICE_PMI}"


def _directory(job: "Job", run_directory: Path | None, goes_on: bool) -> str | None:
    made = make_directory(job, run_directory, goes_on=goes_on)
    return None if made is None else str(made)


def _problem(job: "Job", given: environment.World, comm: "MPI.Intracomm") -> str | None:
    """Return what is wrong with the ranks or their GPUs, the same on all ranks, or None."""
    wrong = judge_world(job, given, size=comm.size)
    if wrong is not None or job.slurm.gpus_per_node == 0 or environment.job_id() is None:
        return wrong
    node, local = environment.slurm_node() or socket.gethostname(), given.local_rank or 0
    gpus = (environment.visible_gpus(), environment.step_gpus(), environment.gpus_on_node())
    mine = Seat(comm.rank, node, local, *gpus)
    seats = [Seat(**{**seat, **_tuples(seat)}) for seat in exchange(comm, asdict(mine))]
    return judge_gpus(seats, gpus_per_node=job.slurm.gpus_per_node)


def _tuples(seat: dict[str, Any]) -> dict[str, tuple[str, ...] | None]:
    return {key: None if seat[key] is None else tuple(seat[key]) for key in ("visible", "whole")}


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
