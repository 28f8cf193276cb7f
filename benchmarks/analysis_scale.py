"""Print how long the analysis of a large log takes and how much memory it needs at most, on one core.

Makes logs of a growing number of steps (benchmarks/make_log.py), or takes a run directory that is there already.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from make_log import Size, make_log
from rich.console import Console
from rich.table import Table

CHILD = """
import sys
from hpcpipe.analyze import summarize
from hpcpipe.events import open_run
run = open_run(sys.argv[1])
report = summarize(run)
assert all(sum(rank.classes.values()) == rank.wall_ns for rank in report.ranks)
print(sum(len(rank.rows) for rank in run.ranks), report.num_steps)
"""


def measure(run: Path) -> tuple[int, int, float, float, float]:
    """Analyse a run in a process of its own on one core: rows, steps, CPU seconds, wall seconds, MiB."""
    core = {min(os.sched_getaffinity(0))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = os.times().elapsed
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(run)], capture_output=True, text=True, check=True, env=environment,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rows, steps = (int(word) for word in done.stdout.split())
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return rows, steps, cpu, os.times().elapsed - began, after.ru_maxrss / 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", nargs="*", type=Path, help="run directories (default: logs are made)")
    parser.add_argument("--pipeline", type=int, default=16)
    parser.add_argument("--data", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 100, 200])
    options = parser.parse_args()
    table = Table("steps", "million rows", "CPU s", "wall s", "peak MiB", "µs a row")
    with tempfile.TemporaryDirectory() as folder:
        runs = list(options.runs)
        if not runs:
            for steps in sorted(options.steps):
                runs.append(Path(folder) / str(steps))
                make_log(runs[-1], Size(options.pipeline, options.data, steps, options.tasks))
        for run in runs:  # in order of size: the peak is that of the largest so far
            rows, steps, cpu, wall, peak = measure(run)
            cells = (f"{rows / 1e6:.1f}", f"{cpu:.1f}", f"{wall:.1f}", f"{peak:.0f}", f"{cpu / rows * 1e6:.2f}")
            table.add_row(str(steps), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
