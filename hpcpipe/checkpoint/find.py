"""Finds the checkpoints that a run may go on from: what a path names, what a run or all runs of a job have left.

It reads manifests and sizes, no contents, and neither MPI nor torch.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hpcpipe.checkpoint.fit import check_fit
from hpcpipe.checkpoint.folder import FOLDER, list_steps, step_of
from hpcpipe.checkpoint.manifest import NAME, CheckpointError, read_manifest
from hpcpipe.checkpoint.reader import faults_of
from hpcpipe.job import Job
from hpcpipe.job.datafile import expanded

AUTO = "auto"


def steps_at(path: Path) -> list[Path]:
    """Return what a path names, the newest first: a checkpoint, a folder of them, a run, or a folder of runs.

    Raises
    ------
    CheckpointError
        There is none.
    """
    path = path.absolute()
    real = Path(os.path.realpath(path))  # unlike resolve, it lets a link that leads to itself be
    if (path / NAME).exists() or step_of(real) is not None:
        return [real]
    if not path.is_dir():
        wrong = "is no folder" if path.exists() else "does not exist"
        raise CheckpointError(
            f"{path} {wrong}; name a checkpoint, a folder of them, a run directory or a folder of runs"
        )
    found = list_steps(path) or list_steps(path / FOLDER) or list_steps(path / "latest" / FOLDER)
    if not found:
        raise CheckpointError(f"{path} holds no checkpoint; a run writes them where its job has [checkpoint] every")
    return [each.resolve() for each in found]


def candidates(
    job: Job, request: str | None, *, run_directory: Path | None, job_id: str | None, restart: int
) -> list[Path]:
    """Return the checkpoints that a run may go on from, the newest first.

    Parameters
    ----------
    request
        A path; AUTO: this run directory's, else those of this batch job's earlier starts, else those of all runs of the
        job's name; None: the first two, and only where the batch system has restarted a job that saves.

    Raises
    ------
    CheckpointError
        A path was given and there is none, or this run directory's are all of another training.
    """
    if request is not None and request != AUTO:
        return steps_at(expanded(request))
    if request is None and not (restart and job.checkpoint.on):
        return []
    if run_directory is not None:
        found = list_steps(run_directory.absolute() / FOLDER)
        _refuse_another_training(found, job)
        return found
    found = list_steps(*earlier_starts(job, job_id, restart)) if job_id is not None else []
    if not found and request == AUTO:
        found = list_steps(*(path.absolute() / FOLDER for path in _folders(job.run.run_dir / job.run.name)))
    return found


def earlier_starts(job: Job, job_id: str, restart: int) -> list[Path]:
    """Return the checkpoint folders of this batch job's earlier starts, the newest start first."""
    found = []
    name = re.compile(rf"{re.escape(job_id)}-(\d+)(\.\d+)?")
    for path in _folders(job.run.run_dir / job.run.name):
        match = name.fullmatch(path.name)
        if match and int(match[1]) < restart:
            found.append((int(match[1]), path.absolute() / FOLDER))
    return [path for _, path in sorted(found, reverse=True)]


def good_one_before(path: Path, job: Job) -> Path | None:
    """Return the newest other checkpoint beside this one that looks usable; contents are not read."""
    for other in list_steps(path.parent):
        if other.name == path.name:
            continue
        with suppress(CheckpointError):
            manifest = read_manifest(other)
            check_fit(other, manifest, job)
            if not faults_of(other, manifest, content=False):
                return other
    return None


def _refuse_another_training(found: Iterable[Path], job: Job) -> None:
    """Refuse to begin anew where another training has left checkpoints, which the new one would replace by its own."""
    problems = []
    for path in found:
        with suppress(CheckpointError):
            manifest = read_manifest(path)
            try:
                check_fit(path, manifest, job)
            except CheckpointError as error:
                problems.append(str(error))
            else:
                return
    if problems:
        raise CheckpointError(f"{problems[0]}; a new training needs another --run-dir")


def _folders(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from (each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
