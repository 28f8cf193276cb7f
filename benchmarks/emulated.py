"""Print step times of real runs on emulated devices next to the simulator's for the same jobs, draws and delays.

Ranks, messages and the runtime are real, tasks only take their time. What a run takes longer than the simulation is
the runtime, the messages, and on a machine with more ranks than cores the ranks' waiting for each other's host work.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.job import Job, load_job
from hpcpipe.job.planned import schedule_of
from hpcpipe.simulate import Scenario, SimulatedRun, simulate_run
from hpcpipe.simulate.costs import emulated_costs

JOB = """
[job]
name = "emulated"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10
weight_ms = 5
message_bytes = 16384
"""

SCHEDULES = (
    ("1f1b", "fixed"),
    ("interleaved", "fixed"),
    ("zb-h1", "fixed"),
    ("zbv", "fixed"),
    ("bf", "ready"),
    ("bfw", "ready"),
    ("zb-h1", "ready"),
    ("zbv", "ready"),
)
VARIABILITIES = {
    "none": (),
    "lognormal 0.6": ('variability.compute={ model = "lognormal", sigma = 0.6 }',),
    "network": ('variability.network={ model = "lognormal", base_ms = 0.5, sigma = 2.0 }',),
}


def simulate(job: Job) -> tuple[SimulatedRun, float]:
    """Return what the simulator says of a job, and the mean length of its steps but the first (ms)."""
    costs = emulated_costs(job)
    run = simulate_run(Scenario(schedule_of(job), costs.times, costs.messages), range(job.run.steps))
    return run, (run.edges[-1] - run.edges[1]) / (job.run.steps - 1) * 1e-6


def measure(path: Path, overrides: list[str], folder: Path) -> dict:
    """Run the job and return the analysis of its log without the first step."""
    words = [word for override in overrides for word in ("--set", override)]
    hpcpipe = [sys.executable, "-m", "hpcpipe"]
    subprocess.run(
        [*hpcpipe, "run", str(path), *words, "--run-dir", str(folder), "--quiet"], check=True, stdout=subprocess.DEVNULL
    )
    analysis = subprocess.run(
        [*hpcpipe, "analyze", str(folder), "--json", "--step", "1:"], check=True, capture_output=True, text=True
    )
    return json.loads(analysis.stdout)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=11, help="the first is left out")
    parser.add_argument("--only", metavar="WORDS", help="only the cases whose names contain these words")
    parser.add_argument(
        "--realtime", action="store_true", help="run before everything else on this machine (needs root)"
    )
    options = parser.parse_args()
    table = Table(title=f"emulated runs: {options.stages} stages, {options.microbatches} micro-batches of 5 + 10 ms")
    for heading in ("variability", "schedule", "run ms", "simulated ms", "more", "in flight", "simulated", "µs a task"):
        table.add_column(heading, justify="left" if heading in ("variability", "schedule") else "right")
    cases = [(name, hint, dispatch) for name in VARIABILITIES for hint, dispatch in SCHEDULES]
    cases = [case for case in cases if options.only is None or options.only in " ".join(case)]
    if options.realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = folder / "job.toml"
        path.write_text(JOB)
        for number, (name, hint, dispatch) in enumerate(track(cases, description="running", transient=True)):
            overrides = [f"parallel.pipeline={options.stages}", f"batch.microbatches={options.microbatches}"]
            overrides += [f"job.steps={options.steps}", f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"']
            overrides += VARIABILITIES[name]
            expected, simulated_ms = simulate(load_job(path, overrides))
            measured = measure(path, overrides, folder / f"run-{number}")
            run_ms = measured["wall_ns"] / (options.steps - 1) * 1e-6
            table.add_row(
                name,
                f"{hint} {dispatch}",
                f"{run_ms:.1f}",
                f"{simulated_ms:.1f}",
                f"{run_ms / simulated_ms - 1:+.1%}",
                str(max(rank["peak_in_flight"] for rank in measured["ranks"])),
                str(max(expected.peak_in_flight)),
                f"{measured['dispatch_overhead_ns_per_task'] / 1e3:.0f}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
