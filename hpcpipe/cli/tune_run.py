"""One short run of a candidate: its job in a folder of its own, started as `hpcpipe run` starts ranks, and its log."""

import sys
from pathlib import Path

from hpcpipe.cli.terminal import refuse
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job
from hpcpipe.tune import Grouping, Report

_FAULTS = (ExitCode.RANK_FAILED, ExitCode.HANG)
"""Codes that may be due to the candidate, too little memory say; after others nothing would run, or nobody wants it."""


def run_once(job: Job, grouping: Grouping, folder: Path, *, steps: int, warm_up: int) -> list[Report] | None:
    """Return the reports of the steps after the warm-up, None if the run failed.

    Raises
    ------
    SystemExit
        The run was interrupted, or ended as those of other candidates would.
    """
    from hpcpipe.cli.start import start_ranks
    from hpcpipe.events import open_run
    from hpcpipe.job.device import Emulated
    from hpcpipe.tune import with_grouping
    from hpcpipe.tune.recorded import reports_of

    folder.mkdir()
    path = folder / "candidate.toml"
    path.write_text(short(with_grouping(job, grouping), steps + warm_up).to_toml(), encoding="utf-8")
    code = start_ranks(job, path, folder / "run", quiet=True)
    if code in _FAULTS:
        return None
    if code == ExitCode.INTERRUPTED:
        refuse("interrupted; nothing was written", ExitCode.INTERRUPTED)
    if code != ExitCode.DONE:
        sys.exit(code)
    return reports_of(open_run(folder / "run"), skip=warm_up, blind=not isinstance(job.device, Emulated))


def short(job: Job, steps: int) -> Job:
    """Return the job for so many steps, with a log and without checkpoints."""
    run = job.run.model_copy(update={"steps": steps, "tensorboard": False})
    events = type(job.events)(compression="none")
    return job.model_copy(update={"run": run, "events": events, "checkpoint": type(job.checkpoint)()})
