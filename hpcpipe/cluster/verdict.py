"""From what a launcher left behind to one exit code and one sentence: which rank died, how, and where the logs are.

It reads files and texts only; nothing here starts or signals a process.
"""

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcpipe.exit_code import ExitCode

AGREED = (
    ExitCode.INPUT,
    ExitCode.ENVIRONMENT,
    ExitCode.DIVERGED,
    ExitCode.HANG,
    ExitCode.REQUEUE,
    ExitCode.INTERRUPTED,
)
"""Exit codes with which all ranks leave together, having said why."""

ALL_STATUSES = re.compile(r"\] Exit codes: (?P<hosts>.*)")
HYDRA_ABORT = re.compile(r"Abort\((?P<code>\d+)\) on node (?P<rank>\d+) .*application called MPI_Abort")
OPEN_MPI_ABORT = re.compile(r"MPI_ABORT was invoked .*\n\s+Proc: \[.*,\s*(?P<rank>\d+)\]\n\s+Errorcode: (?P<code>\d+)")
OPEN_MPI_RANK = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node \S+\s+exited\s+on\s+signal (?P<signal>\d+)"
)
OPEN_MPI_EXIT = re.compile(r"Process name: \[.*,\s*(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)")
HYDRA_PID = re.compile(r"=   PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)\n=   EXIT CODE: (?P<status>\d+)")
HYDRA_STRING = re.compile(r"EXIT STRING: .*\(signal (?P<signal>\d+)\)")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launcher ended, and what it said.

    `deaths` are the ranks in the order in which they were seen to die, as far as that could be watched; `tied` are
    those of them that were seen first and at the same moment.
    """

    returncode: int
    said: str
    deaths: Sequence[int] = ()
    interrupted: int | None = None
    ranks: Sequence[dict[str, Any]] = field(default=())
    tied: Sequence[int] = ()


def read_failures(run_dir: Path) -> list[dict[str, Any]]:
    """Return what ranks wrote about failures before they ended, the first to fail first."""
    found = []
    for path in (run_dir / "failures").glob("rank_*.json"):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append((path.stat().st_mtime_ns, path.name, content))
        except (OSError, ValueError):
            continue
    return [content for _, _, content in sorted(found, key=lambda entry: entry[:2]) if isinstance(content, dict)]


def read_ranks(run_dir: Path) -> list[dict[str, Any]]:
    """Return who the ranks said they are, or nothing if they did not get that far."""
    try:
        content = json.loads((run_dir / "ranks.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []


def judge(ended: Ended, run_dir: Path) -> tuple[int, str]:
    """Return the exit code of the run and the sentence to print, empty where the ranks have said it all."""
    failures = read_failures(run_dir)
    statuses = _statuses(ended.said)
    if failures:
        first = failures[0]
        code = first.get("exit_code")
        sentence = _signal_of(first, ended, statuses) or _unsaid(first, ended)
        return (code if isinstance(code, int) and code else ExitCode.RANK_FAILED), sentence
    if ended.returncode == 0:
        return 0, ""
    if ended.interrupted is not None:
        agreed = ended.returncode in AGREED and _alike(statuses)
        return (ended.returncode if agreed else 128 + ended.interrupted), ""
    aborted = HYDRA_ABORT.search(ended.said) or OPEN_MPI_ABORT.search(ended.said)
    if ended.returncode in AGREED and _alike(statuses) and not aborted:
        return ended.returncode, ""
    if ended.returncode < 0:
        how = f"the launcher mpiexec was {_by_signal(-ended.returncode)}"
        return ExitCode.RANK_FAILED, f"{how}; the job ends on all ranks; its logs are in {run_dir}"
    if aborted:
        who, how = _name(ended, int(aborted["rank"])), f"called MPI_Abort with code {aborted['code']}"
    else:
        who, how = _culprit(ended, statuses)
    return ExitCode.RANK_FAILED, f"{who} {how}; the job ends on all ranks; its logs are in {run_dir}"


def _culprit(ended: Ended, statuses: Sequence[int]) -> tuple[str, str]:
    """Return who died and how, from the best witness there is."""
    rank, status = _dead_rank(ended, statuses)
    signals = HYDRA_STRING.search(ended.said)
    if status is None and signals:
        status = int(signals["signal"])
    if status is None:
        how = f"ended with exit code {ended.returncode}"
    elif status & 0x7F:
        how = f"was {_by_signal(status & 0x7F)}"
    else:
        how = f"ended with exit code {status >> 8}"
    if rank is None:
        return ("a rank" if ended.ranks else "a rank, before all ranks had met,"), how
    alike = [each for each in ended.tied if each < len(statuses) and statuses[each] == status]
    return " or ".join(_name(ended, each) for each in (alike if rank in alike else [rank])), how


def _name(ended: Ended, rank: int) -> str:
    entry = next((entry for entry in ended.ranks if entry.get("rank") == rank), None)
    return f"rank {rank} (stage {entry.get('stage')}) on {entry.get('host')}" if entry else f"rank {rank}"


def _dead_rank(ended: Ended, statuses: Sequence[int]) -> tuple[int | None, int | None]:
    """Return the rank that died first and its wait status.

    When one dies the launcher kills the others, so a status of its own tells more than SIGKILL does, and the order in
    which the ranks were seen to die more than the launcher's word.
    """
    if match := OPEN_MPI_RANK.search(ended.said):
        return int(match["rank"]), int(match["signal"])
    if match := OPEN_MPI_EXIT.search(ended.said):
        return int(match["rank"]), int(match["code"]) << 8
    bad = {rank: status for rank, status in enumerate(statuses) if status}
    own = {rank: status for rank, status in bad.items() if status != signal.SIGKILL}
    if len(own) == 1:
        return next(iter(own.items()))
    seen = [rank for rank in ended.deaths if rank in (own or bad)]
    if seen:
        return seen[0], bad[seen[0]]
    if len(bad) == 1:
        return next(iter(bad.items()))
    if match := HYDRA_PID.search(ended.said):
        pid, status = int(match["pid"]), int(match["status"])
        rank = next((entry.get("rank") for entry in ended.ranks if entry.get("pid") == pid), None)
        return rank, status
    return (ended.deaths[0] if ended.deaths else None), None


def _signal_of(failure: dict[str, Any], ended: Ended, statuses: Sequence[int]) -> str:
    """Return which signal killed a rank whose death others have recorded: they could not know it."""
    rank = failure.get("rank")
    if failure.get("exit_code") == ExitCode.HANG:  # whoever hung was killed for it
        return ""
    if "Traceback" in str(failure.get("reason", "")) or list(ended.deaths[:1]) != [rank]:
        return ""
    status = statuses[rank] if isinstance(rank, int) and rank < len(statuses) else 0
    return f"rank {rank} was {_by_signal(status & 0x7F)}; its logs are in the run directory" if status & 0x7F else ""


def _unsaid(failure: dict[str, Any], ended: Ended) -> str:
    """Return what a record says if nobody lived long enough to print it: the launcher kills those who would."""
    reason = str(failure.get("reason", "")).strip()
    if not reason or reason.splitlines()[-1] in ended.said:
        return ""
    return reason if "Traceback" not in reason else f"{_name(ended, failure.get('rank', -1))} failed\n{reason}"


def _statuses(said: str) -> list[int]:
    """Return the wait status of every rank, if the launcher lists them for one host (then they are in rank order)."""
    match = ALL_STATUSES.search(said)
    hosts = re.findall(r"\[[^\]]*\] ([\d,]+)", match["hosts"]) if match else []
    return [int(status) for status in hosts[0].split(",") if status] if len(hosts) == 1 else []


def _alike(statuses: Sequence[int]) -> bool:
    return len(set(statuses)) <= 1


def _by_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "unknown"
    often = ", as the kernel does when memory runs out" if number == signal.SIGKILL else ""
    return f"killed by signal {number} ({name}){often}"
