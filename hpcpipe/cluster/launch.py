"""Start a job's ranks with mpiexec, stay until they end, and say how they ended by exit code and one sentence.

It must not know what the ranks do; they tell through files in the run directory (verdict.py).
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from hpcpipe.cluster import mpiexec as launcher
from hpcpipe.cluster.deaths import DeathWatch
from hpcpipe.cluster.output import BannerFilter, Pump
from hpcpipe.cluster.verdict import Ended, judge, read_ranks
from hpcpipe.exit_code import ExitCode

STOPS = (signal.SIGTERM, signal.SIGUSR2)
"""Signals after which the ranks, once one of them has got it, stop together at the end of a step."""

FORWARDED = (signal.SIGINT, signal.SIGHUP, *STOPS)
SAME_STOP_S = 1.0
PR_SET_PDEATHSIG = 1


def launch(command: Sequence[str], ranks: int, run_dir: Path, env: Mapping[str, str] | None = None) -> int:
    """Run a command on so many ranks and return the exit code of the run.

    Parameters
    ----------
    run_dir
        Where the ranks write `ranks.json` and `failures/`; what an earlier run left there is removed.
    env
        Variables to set for the ranks besides the present ones.
    """
    mpiexec = launcher.find_mpiexec()
    if mpiexec is None:
        _say(launcher.MISSING)
        return ExitCode.ENVIRONMENT
    _forget_earlier_run(run_dir)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    try:
        process = subprocess.Popen(
            mpiexec.command(command, ranks),
            env=mpiexec.environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C reaches us alone, and the launcher once, from us
            preexec_fn=_end_with_parent(),  # noqa: PLW1509 - no thread has been started yet
        )
    except OSError as error:
        _say(f"{mpiexec.path} cannot be started: {error.strerror or error}")
        return ExitCode.ENVIRONMENT
    code, sentence = judge(_attend(process, run_dir, hydra=mpiexec.vendor == "mpich"), run_dir)
    if sentence:
        _say(sentence)
    return code


def _attend(process: "subprocess.Popen[bytes]", run_dir: Path, *, hydra: bool) -> Ended:
    """Pass on output and signals until the launcher ends."""
    assert process.stdout is not None
    assert process.stderr is not None
    pumps = [
        Pump(process.stdout.fileno(), 1, BannerFilter() if hydra else None),
        Pump(process.stderr.fileno(), 2, BannerFilter() if hydra else None),
    ]
    watch = DeathWatch(run_dir, process.pid)
    for thread in (*pumps, watch):
        thread.start()
    with _signals_forwarded(process, run_dir) as received:
        returncode = process.wait()
    watch.close()
    for pump in pumps:  # a rank that outlives its launcher may keep the pipe open
        pump.join(timeout=5)
    interrupted = received[0] if received else None
    said = "\n".join(pump.said for pump in pumps)
    return Ended(returncode, said, watch.deaths, interrupted, read_ranks(run_dir), watch.tied)


@contextmanager
def _signals_forwarded(process: "subprocess.Popen[bytes]", run_dir: Path) -> Iterator[list[int]]:
    """Hand signals on, the second one to the launcher as SIGKILL; yield the list of those that came.

    A wish to stop goes to a rank, which tells the others. It may come twice (GNU timeout signals its child and then the
    whole group), so what follows within a second is the same one.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    first_stop: list[float] = []

    def forward(number: int, _: FrameType | None) -> None:
        if number in STOPS and first_stop and time.monotonic() - first_stop[0] < SAME_STOP_S:
            return
        received.append(number)
        with suppress(ProcessLookupError):
            if len(received) == 1 and number in STOPS:
                first_stop.append(time.monotonic())
                _stop(process, run_dir, number)
            elif len(received) == 1:
                process.send_signal(number)
            else:
                os.killpg(process.pid, signal.SIGKILL)

    earlier = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _stop(process: "subprocess.Popen[bytes]", run_dir: Path, number: int) -> None:
    """Pass a wish to stop to a rank of this host, or end the launcher while the ranks have not met."""
    here = socket.gethostname().partition(".")[0]
    for entry in read_ranks(run_dir):
        pid = entry.get("pid")
        if str(entry.get("host")).partition(".")[0] == here and isinstance(pid, int):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                _say(
                    f"{signal.Signals(number).name}: the ranks stop after the next step; a second one ends them at once"
                )
                return
    process.terminate()


def _end_with_parent() -> Callable[[], None]:
    """Return what a child calls before it becomes mpiexec, so that it is ended when we die without a word."""
    parent = os.getpid()
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (AttributeError, OSError):  # not Linux
        return lambda: None

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _forget_earlier_run(run_dir: Path) -> None:
    for path in (run_dir / "ranks.json", *(run_dir / "failures").glob("rank_*.json"), *(run_dir / "hang").glob("*")):
        with suppress(OSError):
            path.unlink()


def _say(sentence: str) -> None:
    print(f"hpcpipe: {sentence}", file=sys.stderr, flush=True)
