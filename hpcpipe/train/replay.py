"""Replay another run's order: every rank reads its own part of the log, and all agree on whether it fits.

What a log holds and what makes it fit is in events/recording.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.events import LogError, open_rank
from hpcpipe.events.recording import Recording, ReplayError, check_settings, check_slots, check_steps, held_of, record
from hpcpipe.job import Job
from hpcpipe.plan.slots import Held
from hpcpipe.runtime import Place, World
from hpcpipe.tune import Grouping, batch_of

if TYPE_CHECKING:
    from hpcpipe.train.grouping import Groupings


@dataclass(frozen=True, slots=True)
class Replay:
    """The recorded orders of this rank, and what each chunk of every stage of its pipeline holds at most in them."""

    source: Path
    recording: Recording
    held: tuple[tuple[Held, ...], ...]

    def prepare(self, step: int, groupings: "Groupings") -> None:
        """Have the step after this one, which begins now, grouped as it was recorded."""
        groups = self.recording.groups
        if step + 1 >= len(groups) or groups[step + 1] == groups[step]:
            return
        k, microbatches = groups[step + 1]
        groupings.change(step + 1, Grouping(max(k, 1), batch_of(groupings.first.job) // microbatches))


def read_replay(job: Job, source: Path, world: World) -> Replay:
    """Read this rank's part of a log (collective over the world); an error is the same on all ranks.

    Raises
    ------
    ReplayError
        The log cannot be replayed by this job.
    """
    recording = problem = None
    try:
        log = open_rank(source, world.rank)
        check_settings(job, log.header, source)
        recording = record(job, log)
    except (LogError, ReplayError) as error:
        problem = str(error)
    if (first := world.first(problem)) is not None:
        raise ReplayError(first)
    assert recording is not None
    check_steps(job, source, world.collect(recording.steps))
    everyones = [[Held(*each) for each in held] for held in world.collect(held_of(job, recording))]
    mine = _of_pipeline(job, everyones, rank=world.rank)
    for rank in range(job.parallel.data * job.parallel.tensor):  # the first stages of all pipelines
        check_slots(job, source, _of_pipeline(job, everyones, rank=rank))
    return Replay(source, recording, mine)


def _of_pipeline(job: Job, held: Sequence[Sequence[Held]], *, rank: int) -> tuple[tuple[Held, ...], ...]:
    """Return what the stages hold of the pipeline that a rank belongs to."""
    sizes = job.parallel
    place = Place.of(rank, pipeline=sizes.pipeline, data=sizes.data, tensor=sizes.tensor)
    return tuple(tuple(held[place.rank_of(stage)]) for stage in range(sizes.pipeline))
