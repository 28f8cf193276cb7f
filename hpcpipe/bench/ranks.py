"""Run a benchmark on MPI ranks from a plain command: start them, wait, and read the table that rank 0 wrote.

Under a launcher (mpiexec, srun) the ranks are there already, and the benchmark runs on them as it is.
"""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hpcpipe.bench.table import BenchTable
from hpcpipe.cluster import environment
from hpcpipe.cluster.launch import launch
from hpcpipe.exit_code import ExitCode

RESULT_VARIABLE = "HPCPIPE_BENCH_RESULT"
"""Tells the ranks of a benchmark where rank 0 is to write the table, for the process that started them."""

_LOOK_EVERY_S = 0.2


class CannotRunError(RuntimeError):
    """A benchmark that cannot run here, or so; the message says why and what to do, `code` how the command ends."""

    def __init__(self, message: str, code: ExitCode = ExitCode.ENVIRONMENT) -> None:
        super().__init__(message)
        self.code = code


def run_on_ranks(
    name: str,
    work: Callable[[Callable[[], object]], BenchTable | None],
    *,
    ranks: int,
    words: list[str],
    progress: Callable[[], object] = lambda: None,
) -> BenchTable | None:
    """Return the table of a benchmark, None on every rank but the first.

    Parameters
    ----------
    name
        The benchmark, as in `hpcpipe bench NAME`.
    work
        What each rank does, with what it is to call after every piece; called only on ranks, so only it starts MPI.
    ranks
        How many to start where no launcher has.
    words
        The options that the ranks are to be started with.
    progress
        Called, in the process that was started by hand, after every piece.

    Raises
    ------
    SystemExit
        The ranks could not be started or failed; they have said why.
    """
    if environment.world() is not None:
        wanted = os.environ.get(RESULT_VARIABLE)
        table = work(_note_pieces(Path(wanted)) if wanted else progress)
        if table is None or not wanted:
            return table
        Path(wanted).write_text(json.dumps(table.to_json()))
        return None
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as folder:
        result = Path(folder) / "table.json"
        command = [sys.executable, "-m", "hpcpipe", "bench", name, *words]
        with pieces_passed_on(result, progress):
            code = launch(command, ranks, Path(folder), {RESULT_VARIABLE: str(result)})
        if code == ExitCode.INTERRUPTED:
            raise CannotRunError("interrupted; nothing was measured to the end", ExitCode.INTERRUPTED)
        if code != 0:
            sys.exit(code)
        return BenchTable.from_json(json.loads(result.read_text()))


def _pieces(result: Path) -> Path:
    return result.with_suffix(".pieces")


def _note_pieces(result: Path) -> Callable[[], object]:
    """Return what a rank calls after every piece, to be seen by the process that started it."""

    def note() -> None:
        with _pieces(result).open("ab") as file:
            file.write(b".")

    return note


@contextmanager
def pieces_passed_on(result: Path, progress: Callable[[], object]) -> Iterator[None]:
    """Call `progress` for every piece that the ranks, which write their table to `result`, have done."""
    ended = threading.Event()

    def watch() -> None:
        seen = 0
        while not ended.wait(_LOOK_EVERY_S):
            count = _pieces(result).stat().st_size if _pieces(result).exists() else 0
            for _ in range(count - seen):
                progress()
            seen = count

    thread = threading.Thread(target=watch, name="hpcpipe-bench-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
