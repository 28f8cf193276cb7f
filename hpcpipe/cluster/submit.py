"""Hand a batch script to sbatch, and follow its job to the end; the only caller of Slurm's client commands.

It must not know what is in the script (render.py).
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcpipe.cluster.environment import submission_environment
from hpcpipe.exit_code import ExitCode

ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
PATIENCE_S = 300.0
DEPENDENCY = re.compile(r"(?:(?P<kind>ok|any|notok|start):)?(?P<job>\d+(?:_\d+)?)")
KINDS = {"ok": "afterok", "any": "afterany", "notok": "afternotok", "start": "after"}


class SlurmError(RuntimeError):
    """Slurm is not here or does not want the job; the message is for the user."""


def dependency(text: str) -> str | None:
    """Return `123`, `any:123`, `notok:123` or `start:123` as sbatch writes it; None if it is none of them."""
    match = DEPENDENCY.fullmatch(text)
    return f"{KINDS[match['kind'] or 'ok']}:{match['job']}" if match else None


def submit(script: str) -> str:
    """Submit a batch script and return the job's id.

    Raises
    ------
    SlurmError
        There is no sbatch here, or it refused.
    """
    said = _ask(["sbatch", "--parsable"], script)
    job_id = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
    if not job_id.isdecimal():
        raise SlurmError(
            f"sbatch said {said.strip()!r}, which holds no job's number; squeue --me shows what became of it"
        )
    return job_id


def states(job_id: str) -> list[tuple[str, str, str]]:
    """Return number, state and exit code (`code:signal`) of a job, of each element if it is an array.

    Raises
    ------
    SlurmError
        Slurm does not answer, or no longer knows the job.
    """
    found = []
    for line in _ask(["scontrol", "show", "job", "--oneliner", job_id]).splitlines():
        values = dict(re.findall(r"(?:^|\s)(JobId|ArrayTaskId|JobState|ExitCode)=(\S+)", line))
        if "JobState" in values:
            number = f"{job_id}_{values['ArrayTaskId']}" if "ArrayTaskId" in values else values["JobId"]
            found.append((number, values["JobState"], values.get("ExitCode", "0:0")))
    return found


def follow(job_id: str, log: Path, *, say: Callable[[str], None], every_s: float = 2.0) -> int:
    """Pass on the log as it grows until the job has ended, through every requeue, and return its exit code.

    `log` is the path without patterns; where it does not appear (a job array has many), only the states are told.
    """
    position, last_answer = 0, time.monotonic()
    told: dict[str, str] = {}
    next_look = 0.0
    while True:
        position = _pass_on(log, position)
        if time.monotonic() < next_look:
            time.sleep(0.2)
            continue
        next_look = time.monotonic() + every_s
        try:
            now = states(job_id)
            last_answer = time.monotonic()
        except SlurmError as error:
            if time.monotonic() - last_answer > PATIENCE_S or "Invalid job id" in str(error):
                say(f"Slurm does not tell about job {job_id} any more: {error}")
                return ExitCode.ENVIRONMENT
            continue
        for number, state, _ in now:
            if told.get(number) != state:
                told[number] = state
                say(f"job {number} is {state.lower()}")
        if now and all(state in ENDED for _, state, _ in now):
            _pass_on(log, position)
            return max(_code(state, exit_code) for _, state, exit_code in now)


def _pass_on(log: Path, position: int) -> int:
    """Write what the log has got since a position, and return the new one."""
    try:
        with log.open("rb") as file:
            file.seek(position)
            while data := file.read(1 << 16):
                sys.stdout.buffer.write(data)
                position += len(data)
        sys.stdout.buffer.flush()
    except FileNotFoundError:
        pass
    return position


def _code(state: str, exit_code: str) -> int:
    code, _, signal = exit_code.partition(":")
    if state == "COMPLETED":
        return 0
    if code.isdecimal() and int(code):
        return int(code)
    return 128 + int(signal) if signal.isdecimal() and int(signal) else ExitCode.RANK_FAILED


def _ask(command: Sequence[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(
            command,
            input=None if text is None else text.encode(),
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            timeout=120,
            check=False,
            env=submission_environment(),
        )
    except FileNotFoundError:
        raise SlurmError(
            f"there is no {command[0]} on PATH: submit on a login node of a cluster with Slurm; "
            "--dry-run shows the script anywhere"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]} does not answer: {error}") from None
    if done.returncode != 0:
        raise SlurmError((done.stderr or done.stdout).decode(errors="replace").strip() or f"{command[0]} failed")
    return done.stdout.decode(errors="replace")
