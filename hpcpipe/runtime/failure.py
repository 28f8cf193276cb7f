"""One rank's error ends the job on all ranks: say who and why, leave it in a file, then abort.

Exit codes do not survive every launcher, so the reason is written to the run directory before MPI is told.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from hpcpipe.exit_code import ExitCode
from hpcpipe.job.run_directory import write_once

if TYPE_CHECKING:
    from mpi4py import MPI


_PATIENCE_S = 1.0


def hang_verdict(run_directory: Path) -> Path:
    """Return where it is written that the job hangs, once that is found."""
    return run_directory / "hang" / "verdict.json"


class PeerLostError(ConnectionError):
    """A message failed because of another rank, whose own failure is what the user should be told."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The record of a rank that failed; `stage` is its pipeline stage."""

    rank: int
    stage: int
    host: str
    pid: int
    exit_code: int
    reason: str

    def end(self, run_directory: Path, comm: "MPI.Intracomm") -> None:
        """Leave it on disk and on stderr, and end the job on all ranks with its exit code."""
        if self.write(run_directory):
            with suppress(OSError, ValueError):
                sys.stderr.write(f"hpcpipe: {self.reason}\n")
        abort(comm, self.exit_code)

    @staticmethod
    def path(run_directory: Path, rank: int) -> Path:
        """Return where the failure of a rank is recorded."""
        return run_directory / "failures" / f"rank_{rank:05d}.json"

    def write(self, run_directory: Path) -> bool:
        """Write `failures/rank_NNNNN.json`; return False where somebody has written it before."""
        path = self.path(run_directory, self.rank)
        try:
            path.parent.mkdir(exist_ok=True)
            return write_once(path, json.dumps(asdict(self), indent=2))
        except OSError as error:  # trouble with the disk is not worse than the failure
            print(f"hpcpipe: cannot record the failure in {run_directory}: {error}", file=sys.stderr)
        return True


def abort(comm: "MPI.Intracomm", code: int) -> None:
    """End the job on all ranks. MPI_Abort may return for a moment, so the process leaves by itself as well."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # whoever reads us may have gone
                stream.flush()
        comm.Abort(code)
    finally:
        os._exit(code)


class FailureGuard:
    """A `with` block whose exception, a stage's `sys.exit` included, ends the job on all ranks with exit code 4.

    Parameters
    ----------
    comm
        Any communicator of the job.
    place
        How the rank is called in messages, such as "stage 2".
    run_directory
        Where the failure is recorded; None while there is none.
    last_words
        Called before the abort, to close files; its own errors are only reported.
    """

    def __init__(
        self,
        comm: "MPI.Intracomm",
        *,
        place: str,
        stage: int,
        host: str,
        run_directory: Path | None = None,
        last_words: Callable[[], None] = lambda: None,
    ) -> None:
        self._comm = comm
        self._place = place
        self._stage = stage
        self._host = host
        self._run_directory = run_directory
        self._last_words = last_words

    def __enter__(self) -> "FailureGuard":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if error is None:
            return False
        interrupted = isinstance(error, KeyboardInterrupt)
        try:
            if not interrupted:
                self._report(error)
            self._last_words()
        except Exception as trouble:  # whatever it is, the job must still end
            with suppress(OSError, ValueError):
                sys.stderr.write(f"hpcpipe: the files of rank {self._comm.rank} could not be closed: {trouble}\n")
        finally:
            abort(self._comm, ExitCode.INTERRUPTED if interrupted else ExitCode.RANK_FAILED)
        return False

    def _report(self, error: BaseException) -> None:
        from mpi4py import MPI

        if isinstance(error, PeerLostError | MPI.Exception):
            time.sleep(_PATIENCE_S)  # whoever knows the true cause (peers.py, the launcher) ends the job meanwhile
        rank = self._comm.rank
        text = "".join(traceback.format_exception(error))
        name = f"rank {rank} ({self._place}) on {self._host}"
        if self._run_directory is not None:
            Failure(rank, self._stage, self._host, os.getpid(), ExitCode.RANK_FAILED, text).write(self._run_directory)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"\nhpcpipe: {name} failed; the job ends on all ranks\n{text}")
