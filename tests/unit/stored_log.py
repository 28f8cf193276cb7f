"""Puts a log that is only in memory, such as a simulated run's, into files as its ranks would have written them."""

from collections.abc import Sequence
from pathlib import Path

from hpcpipe.events import EventWriter, RunLog


def store(run: RunLog, folder: Path, decisions: Sequence[tuple[int, str, str]] = ()) -> Path:
    """Write `folder/events/rank_*.h5` and return the folder."""
    events = folder / "events"
    events.mkdir(parents=True)
    for rank in run.ranks:
        with EventWriter(events / f"rank_{rank.rank:05d}.h5", rank.header, compression="none") as writer:
            writer.clock(0, 0, 0 if rank.rank == 0 else 2)
            rows = rank.events
            for values in zip(*(getattr(rows, name).tolist() for name in rows.__dataclass_fields__), strict=True):
                step, microbatch, kind, *rest = values
                writer.event(kind, step, microbatch, *rest)
            steps = rank.steps
            for step, begin, end in zip(steps.step.tolist(), steps.t_begin.tolist(), steps.t_end.tolist(), strict=True):
                writer.step(step, begin, end)
            for decision in decisions:
                writer.decision(*decision)
    return folder
