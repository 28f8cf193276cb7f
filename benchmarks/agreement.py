"""Print what tensor slices wait for each other's consent: telling all that is ready, proposing one task, a fixed order.

Real ranks and messages on emulated devices; every slice draws its own delays, all runs meet the same ones. A round that
is deferred found nothing that all slices could run.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from emulated import JOB, measure, simulate
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.events import open_run
from hpcpipe.job import load_job
from hpcpipe.plan import Kind

RULES = {
    "common": ('schedule.dispatch="ready"',),
    "propose": ('schedule.dispatch="ready"', 'schedule.agreement="propose"'),
    "fixed order": ('schedule.dispatch="fixed"',),
}
VARIABILITY = (
    'variability.compute={ model = "lognormal", sigma = 0.3 }',
    'variability.network={ model = "lognormal", base_ms = 2.0, sigma = 1.5 }',
)


def rounds(folder: Path) -> tuple[int, int]:
    """Return how many rounds the first slice of every stage took part in, and how many of them were deferred."""
    total = deferred = 0
    for rank in open_run(folder).ranks:
        if rank.header.coords[2] == 0:
            chosen = rank.events.microbatch[rank.events.kind == Kind.AGREE]
            total += len(chosen)
            deferred += int(np.count_nonzero(chosen < 0))
    return total, deferred


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--steps", type=int, default=11, help="the first is left out of times")
    parser.add_argument("--hints", default="bf,bfw,1f1b,zb-h1")
    options = parser.parse_args()
    title = f"{options.stages} stages x {options.tensor} slices, {options.microbatches} micro-batches of 5 + 10 ms, "
    table = Table(title=title + "messages of 2 exp(1.5 z) ms by slice")
    for heading in ("hint", "rule", "step ms", "simulated", "rounds a task", "deferred", "agreement", "in flight"):
        table.add_column(heading, justify="left" if heading in ("hint", "rule") else "right")
    cases = [(hint, rule) for hint in options.hints.split(",") for rule in RULES]
    cases = [(hint, rule) for hint, rule in cases if rule != "fixed order" or hint not in ("bf", "bfw")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = folder / "job.toml"
        path.write_text(JOB)
        for number, (hint, rule) in enumerate(track(cases, description="running", transient=True)):
            overrides = [f"parallel.pipeline={options.stages}", f"parallel.tensor={options.tensor}", *VARIABILITY]
            overrides += [f"batch.microbatches={options.microbatches}", f"job.steps={options.steps}"]
            overrides += [f'schedule.hint="{hint}"', *RULES[rule]]
            job = load_job(path, overrides)
            _, simulated_ms = simulate(job)
            run = folder / f"run-{number}"
            measured = measure(path, overrides, run)
            total, deferred = rounds(run)
            tasks = options.steps * options.stages * options.microbatches * (3 if job.splits else 2)
            agreement = sum(rank["classes"]["agreement"] for rank in measured["ranks"])
            wall = sum(rank["wall_ns"] for rank in measured["ranks"])
            table.add_row(
                hint,
                rule,
                f"{measured['wall_ns'] / (options.steps - 1) * 1e-6:.1f}",
                f"{simulated_ms:.1f}",
                f"{total / tasks:.3f}",
                str(deferred),
                f"{agreement / wall:.2%}",
                str(max(rank["peak_in_flight"] for rank in measured["ranks"])),
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
