"""Measure how long commands and ranks take until they work: `--help`, `validate`, and the first step for N ranks.

Modules are counted too: they are what a shared file system feels when thousands of ranks start. Nothing is asserted.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.cluster.environment import child_environment
from hpcpipe.cluster.mpiexec import find_mpiexec

JOB = """\
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[parallel]
pipeline = {ranks}
[batch]
microbatches = {ranks}
[schedule]
hint = "bf"
[job]
steps = 1
[device]
kind = "emulated"
forward_ms = 0.1
backward_ms = 0.2
[events]
on = false
"""
COMMANDS = {"--help": ["--help"], "validate": ["validate", "JOB"], "submit --dry-run": ["submit", "JOB", "--dry-run"]}


def command_times(words: list[str], repeats: int) -> list[float]:
    """Return how long a command took each time, in s."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "hpcpipe", *words], env=child_environment(), capture_output=True, check=True
        )
        times.append(time.perf_counter() - begin)
    return times


def num_modules(words: list[str]) -> int:
    """Return how many modules a command imports."""
    command = [sys.executable, "-X", "importtime", "-m", "hpcpipe", *words]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    return len(re.findall(r"^import time:\s+\d", done.stderr, re.MULTILINE))


def start_times(ranks: int, job: Path, folder: Path) -> dict[str, float]:
    """Return when the ranks had met and when the first step was done, in s after the command."""
    mpiexec = find_mpiexec()
    assert mpiexec is not None, "needs an mpiexec"
    program = [sys.executable, "-m", "hpcpipe", "run", str(job), "--run-dir", str(folder), "--quiet"]
    begin = time.time()
    subprocess.run(mpiexec.command(program, ranks), env=mpiexec.environment(), capture_output=True, check=True)
    end = time.time()
    met = (folder / "ranks.json").stat().st_mtime - begin
    first = (folder / "metrics.jsonl").stat().st_mtime - begin
    return {"met": met, "step": first, "end": end - begin}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (job := folder / "job.toml").write_text(JOB.format(ranks=2))
        rows, starts = [], []
        for label, words in track(COMMANDS.items(), "commands", console=console, transient=True):
            given = [str(job) if word == "JOB" else word for word in words]
            seconds = command_times(given, arguments.repeats)
            rows.append({"command": label, "median_s": statistics.median(seconds), "modules": num_modules(given)})
        for ranks in track(arguments.ranks, "ranks", console=console, transient=True):
            job.write_text(JOB.format(ranks=ranks))
            found = [start_times(ranks, job, folder / f"{ranks}-{n}") for n in range(min(3, arguments.repeats))]
            starts.append({"ranks": ranks, **{key: statistics.median(each[key] for each in found) for key in found[0]}})
    if arguments.json:
        print(json.dumps({"name": "startup", "cores": os.cpu_count(), "commands": rows, "starts": starts}, indent=2))
        return
    table = Table("command", "median s", "modules")
    for row in rows:
        table.add_row(row["command"], f"{row['median_s']:.3f}", str(row["modules"]))
    console.print(table)
    table = Table("ranks", "have met, s", "first step done, s", "all ended, s", title=f"{os.cpu_count()} cores")
    for start in starts:
        table.add_row(str(start["ranks"]), *(f"{start[key]:.2f}" for key in ("met", "step", "end")))
    console.print(table)


if __name__ == "__main__":
    main()
