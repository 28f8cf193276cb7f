"""Which of several checkpoints a run goes on from: the first that is whole and of its job; the others are warned of.

How one is read is the caller's, since ranks share that work. It knows neither torch nor MPI.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcpipe.checkpoint.find import good_one_before
from hpcpipe.checkpoint.fit import check_fit
from hpcpipe.checkpoint.folder import FOLDER, held
from hpcpipe.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from hpcpipe.checkpoint.reader import faults_of
from hpcpipe.job import Job

Verdict = tuple[Manifest | None, str]
"""The manifest, where it can be read, and what is wrong, or nothing."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A checkpoint that was found to be whole and of this job."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return self.manifest.step

    @property
    def run(self) -> Path | None:
        """The directory of the run that has written it, None if it lies elsewhere."""
        return self.folder.parent.parent if self.folder.parent.name == FOLDER else None


def choose(
    job: Job, found: Sequence[Path], *, read: Callable[[Path], Verdict], warn: Callable[[str], None]
) -> Resume | None:
    """Return the first of some checkpoints that can be used.

    Raises
    ------
    CheckpointError
        There is one only and it cannot be used; a good one beside it is named.
    """
    for number, folder in enumerate(found):
        manifest, problem = read(folder)
        if manifest is not None and not problem:
            return Resume(folder, manifest)
        if len(found) == 1:
            before = good_one_before(folder, job)
            raise CheckpointError(problem + (f"; a good one is there: --resume {before}" if before else ""))
        rest = "the one before it is tried" if number + 1 < len(found) else "there is no other"
        warn(f"{problem}; {rest}")
    return None


def judge(
    job: Job, folder: Path, *, part: tuple[int, int] = (0, 1), also: Callable[[Manifest], None] = lambda _: None
) -> Verdict:
    """Read a checkpoint, its files' contents too, and say what is wrong with it.

    Parameters
    ----------
    part
        (i, n): only files i, i + n, i + 2n and so on.
    also
        A further check, which raises CheckpointError.
    """
    manifest = None
    try:
        with held(folder):
            manifest = read_manifest(folder)
            check_fit(folder, manifest, job)
            also(manifest)
            faults = faults_of(folder, manifest, content=True, part=part)
    except CheckpointError as error:
        return manifest, str(error)
    return manifest, f"{folder} cannot be used: {'; '.join(faults)}" if faults else ""
