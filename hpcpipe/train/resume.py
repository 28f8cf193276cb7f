"""Where a training goes on: the checkpoint that all ranks agree on, and the manifest that the next ones begin with.

The files are read by all ranks together, each its share, before anything is built. Which checkpoints there are is found
in checkpoint/find.py; what a rank takes from one is held.py's.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import CheckpointError, Manifest, Reader, Resume, choose, held, judge
from hpcpipe.checkpoint.choose import Verdict
from hpcpipe.job import Job
from hpcpipe.runtime import Place, World
from hpcpipe.train.layout import Layout

if TYPE_CHECKING:
    from hpcpipe.train.held import Holdings


def choose_together(job: Job, found: Sequence[Path], *, world: World, warn: Callable[[str], None]) -> Resume | None:
    """Return the first of some checkpoints that is whole and of this job's model (collective over the world).

    Raises
    ------
    CheckpointError
        There is one only and it cannot be used; the same on all ranks.
    """
    from hpcpipe.train.held import check_model

    sizes = job.parallel
    stage = Place.of(world.rank, pipeline=sizes.pipeline, data=sizes.data, tensor=sizes.tensor).stage

    def read(folder: Path) -> Verdict:
        def also(manifest: Manifest) -> None:
            check_model(Layout.of(job), stage, folder, manifest)

        manifest, problem = judge(job, folder, part=(world.rank, world.size), also=also)
        return manifest, world.first(problem) or ""

    return choose(job, found, read=read, warn=warn)


def restore(resume: Resume, holdings: "Holdings", world: World) -> None:
    """Take the state of a checkpoint (collective over the world).

    Raises
    ------
    CheckpointError
        It has been removed or damaged meanwhile; the same on all ranks.
    """
    problem = ""
    try:
        with held(resume.folder):
            holdings.restore(Reader(resume.folder, resume.manifest))
    except (CheckpointError, OSError) as error:
        problem = str(error)
    if first := world.first(problem):
        raise CheckpointError(first)


def manifest_of(
    job: Job, holdings: "Holdings", step: int, restarts: int, numbers: Mapping[str, float], tokenizer: str | None
) -> Manifest:
    """Return the manifest of the state after `step` steps, without tensors."""
    sizes, batch = job.parallel, job.batch
    return Manifest(
        step=step,
        created_utc=datetime.now(UTC).isoformat(),
        software=f"hpcpipe {version('hpcpipe')}",
        job_name=job.run.name,
        job_toml=job.to_toml(),
        job_sha256=job.sha256,
        mesh=(sizes.pipeline, sizes.data, sizes.tensor, job.chunks),
        seed=job.run.seed,
        samples=step * batch.microbatches * batch.microbatch_size * sizes.data,
        optimizer=job.optimizer.name,
        restarts=restarts,
        layers=holdings.layers,
        ties=holdings.ties,
        files={},
        parameters={},
        state={},
        numbers=dict(numbers),
        tokenizer=tokenizer,
    )
