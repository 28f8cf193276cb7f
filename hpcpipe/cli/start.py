"""Start a job's ranks from a plain command; loads neither MPI nor torch, which only the ranks need."""

import sys
from pathlib import Path

from hpcpipe.cli.terminal import COLUMNS_VARIABLE, terminal_columns
from hpcpipe.cluster import environment
from hpcpipe.cluster.launch import launch
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import Job
from hpcpipe.job.run_directory import make_run_directory, point_latest


def start_ranks(job: Job, words: list[str], run_dir: Path | None) -> int:
    """Start the ranks of a job with the words of its command line, stay until they end, and return the exit code."""
    directory = make_directory(job, run_dir)
    if directory is None:
        return ExitCode.ENVIRONMENT
    columns = terminal_columns()
    command = [sys.executable, "-m", "hpcpipe", "run", *words, "--run-dir", str(directory)]
    return launch(command, job.parallel.ranks, directory, {COLUMNS_VARIABLE: str(columns)} if columns else None)


def make_directory(job: Job, run_directory: Path | None) -> Path | None:
    """Make the run directory; say on stderr why it cannot be, and return None."""
    try:
        if run_directory is None:
            made = make_run_directory(
                job.run.run_dir, job.run.name, job_id=environment.job_id(), restart=environment.restart_count()
            )
            point_latest(made)
            return made
        run_directory.mkdir(parents=True, exist_ok=True)
        if (taken := run_directory / "job.toml").exists():  # of an earlier run, or the user's own
            raise FileExistsError(f"{taken} is there already and would be replaced")
    except OSError as error:
        print(
            f"hpcpipe: cannot make the run directory: {error}; choose another place with [job] run_dir or --run-dir",
            file=sys.stderr,
        )
        return None
    return run_directory
