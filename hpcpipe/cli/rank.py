"""Be one rank of a job that a launcher has started: agree on the run directory, train, report on rank 0."""

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.cli.garbage import collect_as_usual
from hpcpipe.cli.start import make_directory
from hpcpipe.cli.terminal import say
from hpcpipe.cluster import environment
from hpcpipe.cluster.gpu_aware import decide_for_all, nccl_without_gpus
from hpcpipe.cluster.meeting import gather, library, meet, share
from hpcpipe.cluster.placement import ADVICE_PMI, Seat, judge_gpus, judge_interface, judge_world
from hpcpipe.cluster.starting import PATIENCE_S, STARTED, explained, leave_word, stay_a_moment
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import JobError
from hpcpipe.job.source import read_source
from hpcpipe.stop import StopWish

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.device.gpu_aware import GpuAware
    from hpcpipe.job import Job
    from hpcpipe.runtime import World


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
        if not _speaks_to_mpi(given):
            return ExitCode.ENVIRONMENT
        revision = _git_revision() if given.rank == 0 else ""
        comm = _meet(given)
        if given.rank == 0:
            leave_word(STARTED)
        if (problem := _problem(job, given, comm)) is not None:
            if given.rank == 0:
                say(f"hpcpipe: {problem}", err=True)
            return ExitCode.ENVIRONMENT
        gpu_aware = decide_for_all(job, given, comm)
        if (problem := nccl_without_gpus(job, gpu_aware)) is not None:
            if given.rank == 0:
                say(f"hpcpipe: {problem}", err=True)
            return ExitCode.ENVIRONMENT
        return _train(job, early, run_directory, replay, revision, resume, gpu_aware, quiet=quiet)


def read_for_all(job_file: Path, given: environment.World) -> str | None:
    """Return what rank 0 reads in the job file, so that no other rank opens it (collective; starts MPI).

    None where it cannot read it, or the ranks have not met: then each finds out by itself what is wrong.
    """
    text = None
    if not _speaks_to_mpi(given):
        sys.exit(ExitCode.ENVIRONMENT)
    if given.rank == 0:
        with suppress(JobError):
            text = read_source(job_file).text
    comm = _meet(given)
    if comm.size != given.size:
        return None
    found = share(comm, text)
    assert found is None or isinstance(found, str)
    return found


def _speaks_to_mpi(given: environment.World) -> bool:
    """Return whether MPI can start with what srun serves, where that is known before; rank 0 says why not."""
    served = environment.slurm_mpi()
    if given.launcher != "slurm" or served is None or not served.startswith("pmix"):
        return True
    problem = judge_interface(served, library())
    if problem is None:
        return True
    if given.rank == 0:
        say(f"hpcpipe: {problem}", err=True)
    stay_a_moment(given, ExitCode.ENVIRONMENT)
    return False


def _meet(given: environment.World) -> "MPI.Intracomm":
    """Start MPI, if it has not been started, with somebody to speak for rank 0 should it be ended by that."""
    if given.rank != 0:
        return meet()
    _git_revision()  # now, because once MPI has started no process may be forked
    with explained(_if_mpi_dies(given), while_it_lasts=_if_mpi_waits(given)):
        return meet()


def _train(
    job: "Job",
    early: StopWish,
    run_directory: Path | None,
    replay: Path | None,
    revision: str,
    resume: str | None,
    gpu_aware: "GpuAware | None",
    *,
    quiet: bool,
) -> int:
    # Here, because torch takes seconds to import and ranks that do not fit the job are told so without it.
    from hpcpipe.cli.resume import CheckpointError, find_together, goes_on, is_done
    from hpcpipe.runtime import FailureGuard, World
    from hpcpipe.train import Origin, ReplayError, read_replay, train
    from hpcpipe.train.collectives import problem_with_nccl
    from hpcpipe.train.work import deal_gpus

    world = World()
    world.gpu_aware = gpu_aware
    with FailureGuard(world.comm, place="outside the training", stage=-1, host=world.host):
        try:
            order = None if replay is None else read_replay(job, replay, world)
        except ReplayError as error:
            if world.rank == 0:
                say(f"hpcpipe: {error}", err=True)
            return ExitCode.INPUT
        if problem := wrong_inside(job, world):
            if world.rank == 0:
                say(f"hpcpipe: {problem}", err=True)
            return ExitCode.INPUT
        if problem := deal_gpus(job, world).problem or problem_with_nccl(job, world):
            if world.rank == 0:
                say(f"hpcpipe: {problem}", err=True)
            return ExitCode.ENVIRONMENT
        try:
            start = find_together(job, resume, run_directory, world)
        except CheckpointError as error:
            if world.rank == 0:
                say(f"hpcpipe: {error}; nothing was started", err=True)
            return ExitCode.INPUT
        if is_done(job, start, speaks=world.rank == 0):
            return ExitCode.DONE
        may_exist = goes_on(job, resume, run_directory, start)
        facts = world.share([_directory(job, run_directory, may_exist), revision] if world.rank == 0 else None)
        if facts[0] is None:
            return ExitCode.ENVIRONMENT
        directory = Path(facts[0])
        if order is not None and world.rank == 0 and not quiet:
            say(f"replays the order of {order.source}")
        if start is not None and world.rank == 0 and not quiet:
            say(f"goes on after step {start.step} of {start.folder}")
        reporter = None
        if world.rank == 0 and not quiet:  # what shows and sums up loads for half a second, and serves rank 0 alone
            from hpcpipe.cli.progress import make_reporter

            reporter = make_reporter(job)
        collect_as_usual()
        outcome = train(
            job,
            world=world,
            run_directory=directory,
            origin=Origin(environment.job_id() or "", environment.restart_count(), facts[1]),
            reporter=reporter,
            replay=order,
            early=early,
            resume=start,
        )
        if world.rank == 0:
            from hpcpipe.cli.report import print_outcome

            print_outcome(job, outcome, directory, quiet=quiet)
    return outcome.exit_code


def wrong_inside(job: "Job", world: "World") -> str | None:
    """Return what is wrong with the data, or with a model of the user's own, as far as only a look inside can tell.

    Collective, with the same answer on all ranks. Rank 0 looks through records and texts before the others do, which
    find in the cache what it has made of them.
    """
    if job.device.kind == "emulated":
        return None
    from hpcpipe.train.batches import problem_of_records
    from hpcpipe.train.layout import problem_with_caps
    from hpcpipe.train.own_model import problem_with
    from hpcpipe.train.regroup import problem_with_grouping

    if problem := world.first(problem_of_records(job) if world.rank == 0 else ""):
        return str(problem)
    mine = problem_of_records(job) or problem_with(job, opens_texts=world.rank == 0)
    if not mine and world.rank == 0:
        mine = problem_with_caps(job) or problem_with_grouping(job)
    return world.first(mine)


def _if_mpi_dies(given: environment.World) -> str:
    served = environment.slurm_mpi()
    how = f" (srun --mpi={served})" if served and given.launcher == "slurm" else ""
    return f"hpcpipe: MPI has ended rank 0 while it started under {given.launcher}{how}; {ADVICE_PMI}"


def _if_mpi_waits(given: environment.World) -> str:
    return (
        f"hpcpipe: MPI has been starting for {PATIENCE_S:.0f} s: rank 0 waits for the other {given.size - 1} ranks "
        f"of {given.launcher}; if it stays so, the nodes cannot reach each other by the network that MPI has "
        "chosen (UCX_NET_DEVICES, FI_TCP_IFACE, FI_PROVIDER), or a node is lost: `hpcpipe doctor` by the same srun line"
    )


def _directory(job: "Job", run_directory: Path | None, goes_on: bool) -> str | None:
    made = make_directory(job, run_directory, goes_on=goes_on)
    if made is not None and job.events.on:
        with suppress(OSError):  # the log will say in its own words what is wrong
            (made / "events").mkdir(exist_ok=True)  # once, before thousands of ranks look for it
    return None if made is None else str(made)


def _problem(job: "Job", given: environment.World, comm: "MPI.Intracomm") -> str | None:
    """Return what is wrong with the ranks or their GPUs, the same on all ranks, or None."""
    wrong = judge_world(job, given, size=comm.size)
    if wrong is not None or job.slurm.gpus_per_node == 0 or environment.job_id() is None:
        return wrong
    node, local = environment.slurm_node() or socket.gethostname(), given.local_rank or 0
    gpus = (environment.visible_gpus(), environment.step_gpus(), environment.gpus_on_node())
    mine = Seat(comm.rank, node, local, *gpus)
    seats = [Seat(**{**seat, **_tuples(seat)}) for seat in gather(comm, asdict(mine))]  # on rank 0, which judges
    wrong = judge_gpus(seats, gpus_per_node=job.slurm.gpus_per_node)
    found = share(comm, wrong)
    assert found is None or isinstance(found, str)
    return found


def _tuples(seat: dict[str, Any]) -> dict[str, tuple[str, ...] | None]:
    return {key: None if seat[key] is None else tuple(seat[key]) for key in ("visible", "whole")}


@cache
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
