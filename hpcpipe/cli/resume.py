"""`hpcpipe run --resume`: find the checkpoint that a run goes on from, alone before the ranks start or together.

Here are the words; what makes a checkpoint usable is checkpoint/'s.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import AUTO, CheckpointError, Resume, candidates, choose, judge
from hpcpipe.cli.terminal import say
from hpcpipe.cluster import environment
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job

if TYPE_CHECKING:
    from hpcpipe.runtime import World

__all__ = ["CheckpointError", "find_alone", "find_together", "goes_on", "is_done"]


def find_alone(job: Job, request: str | None, run_directory: Path | None) -> Resume | None:
    """Return where the run goes on, None for the first step; leave with a sentence where that cannot be."""
    try:
        found = _candidates(job, request, run_directory)
        chosen = choose(job, found, read=lambda folder: judge(job, folder), warn=_warn)
        _begin_anew_or_refuse(request, chosen, say)
    except CheckpointError as error:
        say(f"hpcpipe: {error}; nothing was started", err=True)
        sys.exit(ExitCode.INPUT)
    return chosen


def find_together(job: Job, request: str | None, run_directory: Path | None, world: "World") -> Resume | None:
    """Return where the run goes on, the same on all ranks (collective over the world).

    Raises
    ------
    CheckpointError
        The one that was asked for cannot be used.
    """
    from hpcpipe.train import choose_together

    told: list[object] = []
    if world.rank == 0:
        try:
            told = [[str(path) for path in _candidates(job, request, run_directory)], ""]
        except CheckpointError as error:
            told = [[], str(error)]
    found, problem = world.share(told)
    if problem:
        raise CheckpointError(problem)
    if not found:
        chosen = None
    else:
        warn = _warn if world.rank == 0 else lambda _: None
        chosen = choose_together(job, [Path(path) for path in found], world=world, warn=warn)
    _begin_anew_or_refuse(request, chosen, say if world.rank == 0 else lambda _: None)
    return chosen


def goes_on(job: Job, request: str | None, run_directory: Path | None, start: Resume | None) -> bool:
    """Return whether a run directory that is there may be gone on with."""
    if request == AUTO or (request is None and environment.restart_count() and job.checkpoint.on):
        return True
    return start is not None and run_directory is not None and start.run == run_directory.resolve()


def is_done(job: Job, start: Resume | None, *, speaks: bool) -> bool:
    """Say so where the checkpoint has all the steps of the job."""
    if start is None or start.step < job.run.steps:
        return False
    if speaks:
        steps = f"all {job.run.steps} steps of the job" if start.step == job.run.steps else f"{start.step} steps"
        say(f"{start.folder} has {steps} done; to train on: --set job.steps=N with a larger N")
    return True


def _candidates(job: Job, request: str | None, run_directory: Path | None) -> list[Path]:
    job_id, restart = environment.job_id(), environment.restart_count()
    return candidates(job, request, run_directory=run_directory, job_id=job_id, restart=restart)


def _warn(sentence: str) -> None:
    say(f"hpcpipe: warning: {sentence}", err=True)


def _begin_anew_or_refuse(request: str | None, chosen: Resume | None, tell: Callable[[str], None]) -> None:
    """Say that the training begins anew, or refuse to where checkpoints of a user's choice were to be gone on from."""
    if chosen is not None or request is None:
        return
    if request != AUTO:
        raise CheckpointError(f"no checkpoint of {request} can be used")
    tell("there is no checkpoint to resume from: the training begins with the first step")
