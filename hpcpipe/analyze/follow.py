"""A look at a run that is still going on: the last steps that all ranks finished, and whether the logs are closed.

It reads what is flushed; when to look again and how it is shown is the command's.
"""

from dataclasses import dataclass

from hpcpipe.analyze.describe import look, read_job
from hpcpipe.analyze.results import Report
from hpcpipe.analyze.summary import summarize
from hpcpipe.analyze.windows import AnalysisError, make_windows
from hpcpipe.events import RunLog

LAST_STEPS = 20


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. `report` is of the last steps, None before any is finished; `planned` is 0 where not known.

    `rows` counts all ranks' event rows: where it stands still, nothing is written.
    """

    report: Report | None
    done: int
    planned: int
    ranks: int
    expected: int
    rows: int
    ended: bool


def look_at(run: RunLog, last: int = LAST_STEPS) -> Look:
    """Analyse the last steps of an opened run."""
    planned = look(read_job(run.header), "job", "steps")
    report, done = None, 0
    try:
        windows, _ = make_windows(run)
        if windows.finished:
            first = int(windows.steps[max(0, len(windows) - last)])
            report, done = summarize(run, (first, None)), len(windows)
    except AnalysisError:
        pass  # nothing is finished yet
    return Look(
        report=report,
        done=done,
        planned=planned if isinstance(planned, int) else 0,
        ranks=len(run.ranks),
        expected=run.header.world_size,
        rows=sum(len(rank.rows) for rank in run.ranks),
        ended=len(run.ranks) >= run.header.world_size and all(rank.complete for rank in run.ranks),
    )
