"""Run a benchmark on MPI ranks from a plain command: start them, wait, and read the table that rank 0 wrote.

Under a launcher (mpiexec, srun) the ranks are there already, and the benchmark runs on them as it is.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from hpcpipe.bench.table import BenchTable
from hpcpipe.cluster import environment
from hpcpipe.cluster.launch import launch

RESULT_VARIABLE = "HPCPIPE_BENCH_RESULT"
"""Tells the ranks of a benchmark where rank 0 is to write the table, for the process that started them."""


def run_on_ranks(
    name: str, work: Callable[[], BenchTable | None], *, ranks: int, words: list[str]
) -> BenchTable | None:
    """Return the table of a benchmark, None on every rank but the first.

    Parameters
    ----------
    name
        The benchmark, as in `hpcpipe bench NAME`.
    work
        What each rank does; called only on ranks, so only it starts MPI.
    ranks
        How many to start where no launcher has.
    words
        The options that the ranks are to be started with.

    Raises
    ------
    SystemExit
        The ranks could not be started or failed; they have said why.
    """
    if environment.world() is not None:
        table = work()
        wanted = os.environ.get(RESULT_VARIABLE)
        if table is None or not wanted:
            return table
        Path(wanted).write_text(json.dumps(table.to_json()))
        return None
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as folder:
        result = Path(folder) / "table.json"
        command = [sys.executable, "-m", "hpcpipe", "bench", name, *words]
        code = launch(command, ranks, Path(folder), {RESULT_VARIABLE: str(result)})
        if code != 0:
            sys.exit(code)
        return BenchTable.from_json(json.loads(result.read_text()))
