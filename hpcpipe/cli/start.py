"""Start a job's ranks from a plain command; loads neither MPI nor torch, which only the ranks need."""

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcpipe.checkpoint import FOLDER, list_steps
from hpcpipe.cli.terminal import COLUMNS_VARIABLE, say, suggest, terminal_columns
from hpcpipe.cluster import environment
from hpcpipe.cluster.launch import launch
from hpcpipe.cluster.verdict import read_ranks
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job
from hpcpipe.job.run_directory import continue_run_directory, make_run_directory, point_latest

PATIENCE_S = 10.0
"""How long the ranks of a run that was ended may take to vanish."""

CLAIMED_VARIABLE = "HPCPIPE_CLAIMED"
"""Tells the ranks which run directory the process that starts them has claimed for them."""


def start_ranks(
    job: Job,
    job_file: Path,
    run_dir: Path | None,
    *,
    overrides: Sequence[str] = (),
    words: Sequence[str] = (),
    goes_on: bool = False,
    quiet: bool = False,
) -> int:
    """Start the ranks of a job, stay until they end, and return the exit code; `words` are further ones for `run`."""
    directory = make_directory(job, run_dir, goes_on=goes_on)
    if directory is None:
        return ExitCode.ENVIRONMENT
    if not quiet:
        number = job.parallel.ranks
        say(f"starting {number} {'rank' if number == 1 else 'ranks'} in {directory}; they load torch and MPI first")
    columns = terminal_columns()
    settings = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "hpcpipe", "run", str(job_file), *settings, *words, "--run-dir", str(directory)]
    command += ["--quiet"] if quiet else []
    extra = {CLAIMED_VARIABLE: str(directory)} | ({COLUMNS_VARIABLE: str(columns)} if columns else {})
    code = launch(command, job.parallel.ranks, directory, extra)
    if code == ExitCode.INTERRUPTED and not quiet:
        if list_steps(directory / FOLDER):
            what = "hpcpipe: interrupted; to resume from its last checkpoint"
            suggest(what, "run", job_file, "--resume", directory, overrides=overrides, err=True)
        else:
            say("hpcpipe: interrupted before a checkpoint was written; the same command starts anew", err=True)
    return code


def make_directory(job: Job, run_directory: Path | None, *, goes_on: bool = False) -> Path | None:
    """Make the run directory; say on stderr why it cannot be, and return None.

    With `goes_on` one that is there is taken, and what is in it is continued.
    """
    try:
        if run_directory is None:
            made = make_run_directory(
                job.run.run_dir, job.run.name, job_id=environment.job_id(), restart=environment.restart_count()
            )
            point_latest(made)
            return made
        run_directory.mkdir(parents=True, exist_ok=True)
        if os.environ.get(CLAIMED_VARIABLE) != str(run_directory):
            if goes_on and (run_directory / "job.toml").exists():
                if (rank := _working_rank(run_directory)) is not None:
                    say(f"hpcpipe: in {run_directory} {rank} is still at work; wait for its end", err=True)
                    return None
                continue_run_directory(run_directory)
                return run_directory
            (run_directory / "job.toml").open("x").close()  # ours from here on; rank 0 fills it
    except FileExistsError as error:
        say(
            f"hpcpipe: {error.filename} is there already, of another run or your own; choose another --run-dir, or "
            "--resume auto to go on with it",
            err=True,
        )
        return None
    except OSError as error:
        say(
            f"hpcpipe: cannot make the run directory: {error}; choose another place with [job] run_dir or --run-dir",
            err=True,
        )
        return None
    return run_directory


def _working_rank(run_directory: Path) -> str | None:
    """Return a rank of an earlier start that still works in a run directory, on this host, after some patience."""
    here = socket.gethostname().partition(".")[0]
    give_up = time.monotonic() + PATIENCE_S
    while True:
        found = None
        for entry in read_ranks(run_directory):
            if str(entry.get("host")).partition(".")[0] == here and _is_ours(entry.get("pid")):
                found = f"rank {entry.get('rank')} (process {entry.get('pid')})"
        if found is None or time.monotonic() > give_up:
            return found
        time.sleep(0.05)


def _is_ours(pid: object) -> bool:
    """Return whether a process lives and is one of hpcpipe: its number may be another's by now."""
    try:
        return b"hpcpipe" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
