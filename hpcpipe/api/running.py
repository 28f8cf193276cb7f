"""Trains a job by the command `hpcpipe run` in a process of its own, so that MPI never starts in the caller's."""

import signal
import subprocess
import sys
from pathlib import Path

from hpcpipe.api.job_files import JobLike, Settings, as_file, as_words
from hpcpipe.api.recorded_run import Run
from hpcpipe.cluster import environment
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import load_job
from hpcpipe.job.run_directory import make_run_directory, point_latest


class RunFailedError(RuntimeError):
    """A run that did not reach its end. `exit_code` is the command's, `directory` where it wrote."""

    def __init__(self, exit_code: int, directory: Path, said: str) -> None:
        self.exit_code = exit_code
        self.directory = directory
        self.said = said
        reason = said.strip() or "what it said stands above"
        super().__init__(f"the run in {directory} ended with exit code {exit_code}: {reason}")


def run(
    job: JobLike,
    overrides: Settings = (),
    *,
    run_dir: Path | str | None = None,
    resume: Path | str | None = None,
    replay: Path | str | None = None,
    quiet: bool = True,
) -> Run:
    """Train a job on ranks of this machine, wait until it is done and return the run.

    On a cluster, hand the job to Slurm instead (`hpcpipe submit`) and open its directory with `Run`.

    Parameters
    ----------
    job
        A checked job or the path of a job file.
    overrides
        Values to change, `{"job.steps": 20}` or `["job.steps=20"]`.
    run_dir
        Where to write; by default a new folder of `runs/NAME`, as the command does.
    resume
        A checkpoint, or a run with some, to go on from.
    replay
        A run whose recorded order of tasks is repeated.
    quiet
        Show nothing; otherwise progress and report go to the terminal.

    Raises
    ------
    JobError
        Every fault of the job; nothing was started.
    RunFailedError
        The ranks did not reach the end: one failed, the training diverged, it was stopped by a signal.
    RuntimeError
        This process is itself a rank of a launcher.
    """
    if environment.world() is not None:
        raise RuntimeError("hpcpipe.run starts ranks of its own, but a launcher has started this process as a rank")
    with as_file(job) as path:
        words = as_words(overrides)
        checked = load_job(path, words)
        if run_dir is None:
            directory = make_run_directory(
                checked.run.run_dir,
                checked.run.name,
                job_id=environment.job_id(),
                restart=environment.restart_count(),
            )
            point_latest(directory)
        else:
            directory = Path(run_dir)
        command = [sys.executable, "-m", "hpcpipe", "run", str(path), "--run-dir", str(directory)]
        command += [word for each in words for word in ("--set", each)]
        command += [] if resume is None else ["--resume", str(resume)]
        command += [] if replay is None else ["--replay", str(replay)]
        code, said = _wait([*command, "--quiet"] if quiet else command, quiet=quiet)
    if code != ExitCode.DONE:
        raise RunFailedError(code, directory, said)
    return Run(directory)


def _wait(command: list[str], *, quiet: bool) -> tuple[int, str]:
    """Return the exit code and what was said on stderr; an interrupt goes to the command, which ends its ranks."""
    kept = subprocess.PIPE if quiet else None
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=kept, stderr=kept, text=True, errors="replace", process_group=0
    ) as process:
        try:
            _, said = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.communicate()
            raise
    return process.returncode, said or ""
