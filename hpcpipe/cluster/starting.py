"""The moments in which a rank cannot speak for itself: MPI may end it at its start, srun alter its exit code.

What is arranged here is arranged before MPI starts, since no process may be forked afterwards.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcpipe.cluster.environment import EXIT_CODE_FILE, World
from hpcpipe.exit_code import ExitCode
from hpcpipe.stop import StopWish

PATIENCE_S = 60.0
STARTED = "started"
"""What rank 0 leaves for the batch script when all ranks have met: from then on they catch signals."""

_SPEAKER_STAYS_S, _OTHERS_STAY_S = 2.0, 6.0

_WITNESS = """
answer=$(timeout "$3" cat)
code=$?
[ $code -ne 124 ] || printf "%s\\n" "$2" >&2
[ $code -eq 0 ] || answer=$(cat)
[ -n "$answer" ] || printf "%s\\n" "$1" >&2
"""


@contextmanager
def explained(advice: str, *, while_it_lasts: str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Run the block; if the process is ended in it, by whatever means, somebody else prints the advice.

    If the block takes longer than `patience_s`, `while_it_lasts` is printed once.
    """
    reader, writer = os.pipe()
    try:
        witness = subprocess.Popen(
            ["/bin/sh", "-c", _WITNESS, "sh", advice, while_it_lasts, f"{patience_s:g}"],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PATH": ":".join(filter(None, (os.environ.get("PATH"), os.defpath)))},  # cat, timeout
            start_new_session=True,
        )
    except OSError:  # then MPI's own words must do
        os.close(reader)
        os.close(writer)
        yield
        return
    os.close(reader)
    try:
        yield
    finally:
        with suppress(OSError):
            os.write(writer, b"alive\n")
        os.close(writer)
        witness.wait()


def stay_a_moment(given: World, code: ExitCode) -> None:
    """Stay, before leaving with an error that every rank has found by itself and rank 0 has told.

    srun (--kill-on-bad-exit) and Open MPI's mpiexec end all ranks with the first that leaves, also one that is yet to
    speak, and report the code of one that they killed. So rank 0 stays until slower ranks have come here too, where a
    signal kills nobody; those stay until it comes, or until rank 0 should have spoken.
    """
    if given.rank == 0:
        leave_word(str(int(code)))
    if given.size == 1 or given.launcher == "mpich":  # whose mpiexec lets ranks go that have not started MPI
        return
    with StopWish(lambda _: os._exit(code)) as told:
        give_up = time.monotonic() + (_SPEAKER_STAYS_S if given.rank == 0 else _OTHERS_STAY_S)
        while not any(told.came) and time.monotonic() < give_up:
            time.sleep(0.05)


def leave_word(word: str) -> None:
    """Leave STARTED, and later the exit code that all ranks agreed on, where a batch script asked for it."""
    path = os.environ.get(EXIT_CODE_FILE)
    if path:
        with suppress(OSError):
            Path(path).write_text(f"{word}\n", encoding="ascii")
