"""What adding gradients in a fixed order costs: step time and memory of accumulate = "ordered" beside "arrival".

The first table is simulated, so it is the same on every machine. With --ranks the second one trains a real GPT, where
ordered sums hold back the gradients of micro-batches that came too early.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.job import Job, load_job
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import Kind
from hpcpipe.plan.hints import SPLIT
from hpcpipe.simulate import Scenario, SimulatedRun, simulate_run
from hpcpipe.simulate.costs import emulated_costs

EMULATED = """
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[parallel]
pipeline = 8
[batch]
microbatches = 32
[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10
weight_ms = 5
"""
GPT = """
[model]
kind = "gpt"
layers = 8
dim = 256
heads = 4
context = 64
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[batch]
microbatches = 16
microbatch_size = 2
[schedule]
hint = "bf"
in_flight = "2x"
"""
HINTS = ("1f1b", "bf", "zb-h1", "bfw", "zbv")
VARIABILITIES = {
    "none": (),
    "lognormal 0.6": ('variability.compute={ model = "lognormal", sigma = 0.6 }',),
    "5 % of tasks x10": ('variability.compute={ model = "heavy-tail", probability = 0.05, factor = 10 }',),
    "network, in order": (
        'variability.network={ model = "lognormal", base_ms = 0.5, sigma = 2.0, overtaking = false }',
    ),
    "network, overtaking": ('variability.network={ model = "lognormal", base_ms = 0.5, sigma = 2.0 }',),
}


def simulate(job: Job, steps: int) -> SimulatedRun:
    """Return some steps of a job as the simulator has them."""
    costs = emulated_costs(job)
    return simulate_run(Scenario(schedule_of(job), costs.times, costs.messages), range(steps))


def most_held(run: SimulatedRun, microbatches: int) -> int:
    """Return how many micro-batches' gradients a stage holds at most until earlier ones are in."""
    most = 0
    for step in run.steps:
        for rows in step.rows:
            held: dict[int, set[int]] = {}
            following: dict[int, int] = {}
            for task in (row.task for row in rows if row.task is not None and row.task.kind is Kind.B):
                waiting = held.setdefault(task.chunk, set())
                waiting.add(task.microbatch)
                while following.get(task.chunk, 0) in waiting:
                    waiting.remove(following.get(task.chunk, 0))
                    following[task.chunk] = following.get(task.chunk, 0) + 1
                most = max(most, sum(map(len, held.values())))
            assert all(count == microbatches for count in following.values())
    return most


def simulated(folder: Path, *, room: str, steps: int) -> Table:
    """Return the table of simulated steps; a backward that is split has W wait, one that is not has gradients wait."""
    table = Table(title=f"8 stages x 32 micro-batches, ready, room {room}: arrival's step time, and memory")
    for name in ("variability", "hint", "ordered ms", "arrival ms", "gain %", "stash", "stash arrival", "held"):
        table.add_column(name, justify="left" if name in ("variability", "hint") else "right")
    path = folder / "emulated.toml"
    path.write_text(EMULATED, encoding="utf-8")
    rows = [(name, hint) for name in VARIABILITIES for hint in HINTS]
    for name, hint in track(rows, "simulating", transient=True):
        runs, seeds = {}, range(3)
        for accumulate in ("ordered", "arrival"):
            settings = [f'schedule.hint="{hint}"', f'schedule.accumulate="{accumulate}"', *VARIABILITIES[name]]
            settings += [
                f'schedule.{cap}="{room}"' for cap in ("in_flight", "stash") if cap == "in_flight" or hint in SPLIT
            ]
            jobs = [load_job(path, [*settings, f"variability.seed={seed}"]) for seed in seeds]
            runs[accumulate] = [simulate(job, steps) for job in jobs]
        ordered, arrival = (mean(run.wall_ns / steps * 1e-6 for run in each) for each in runs.values())
        stashes = [max(max(run.peak_stash) for run in each) / jobs[0].chunks for each in runs.values()]
        held = "-" if jobs[0].splits else str(max(most_held(run, 32) for run in runs["ordered"]))
        gain = 100 * (ordered / arrival - 1)
        table.add_row(
            name, hint, f"{ordered:.1f}", f"{arrival:.1f}", f"{gain:+.1f}", *(f"{s:g}" for s in stashes), held
        )
    return table


def measured(folder: Path, *, ranks: int, steps: int) -> Table:
    """Return the table of real runs."""
    table = Table(title=f"GPT of 6.4 million parameters, {ranks} ranks, ready bf, room 2x")
    for name in ("accumulate", "median step ms", "most gradients held", "MB of one"):
        table.add_column(name, justify="right")
    for accumulate in track(("ordered", "arrival"), "training", transient=True):
        results = folder / f"{accumulate}.json"
        command = ["--rank", str(results), "--accumulate", accumulate, "--ranks", str(ranks), "--steps", str(steps)]
        mpiexec = Path(sys.executable).with_name("mpiexec")
        subprocess.run([str(mpiexec), "-n", str(ranks), sys.executable, __file__, *command], check=True, timeout=600)
        found = json.loads(results.read_text())
        table.add_row(accumulate, f"{found['step_ms']:.1f}", str(found["held"]), f"{found['mb']:.1f}")
    return table


def train_here(results: Path, *, accumulate: str, ranks: int, steps: int) -> None:
    """Be one rank of a real run; rank 0 writes what was found."""
    from hpcpipe.runtime import World
    from hpcpipe.train import Origin, train

    world = World()
    folder = results.parent / f"run-{accumulate}"
    path = folder / "gpt.toml"
    if world.rank == 0:
        folder.mkdir()
        path.write_text(GPT, encoding="utf-8")
    world.barrier()
    job = load_job(path, [f"parallel.pipeline={ranks}", f"job.steps={steps}", f'schedule.accumulate="{accumulate}"'])
    seen = []
    train(job, world=world, run_directory=folder, origin=Origin(), before_step=lambda _step, rank: seen.append(rank))
    rank = seen[-1]
    held = max(accumulator.peak_held for accumulator in rank.accumulators)
    size = sum(p.numel() * 4 for each in rank.parameters for p in each)
    all_held = world.collect([held, size])
    if world.rank == 0:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        step_ms = median(line["step_ns"] for line in lines[2:]) * 1e-6
        found = {"step_ms": step_ms, "held": max(h for h, _ in all_held), "mb": max(s for _, s in all_held) / 1e6}
        results.write_text(json.dumps(found))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--room", default="2x", help="caps of the simulated runs, as in [schedule] in_flight")
    parser.add_argument("--ranks", type=int, default=0, help="train for real on so many ranks as well")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--accumulate", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        train_here(given.rank, accumulate=given.accumulate, ranks=given.ranks, steps=given.steps)
        return
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        console.print(simulated(Path(name), room=given.room, steps=given.steps))
        if given.ranks:
            console.print(measured(Path(name), ranks=given.ranks, steps=given.steps))


if __name__ == "__main__":
    main()
