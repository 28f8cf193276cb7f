"""Print how long saving holds up the training: asynchronously as hpcpipe does it, beside waiting for the disk.

It starts its ranks itself. Three trainings of the same GPT: without checkpoints, with one every `--every` steps, and
with one after which every rank waits until its part is on the disk. Stall is what the event log says of the ranks'
CHECKPOINT rows, the longest of all ranks; step time the median of the steps without a checkpoint.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hpcpipe.cluster import environment, mpiexec

JOB = """
[job]
name = "checkpoint"
steps = STEPS
[model]
kind = "gpt"
layers = LAYERS
dim = DIM
heads = 4
context = 64
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[parallel]
pipeline = RANKS
[schedule]
hint = "bf"
[batch]
microbatches = 8
microbatch_size = 4
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to save: times in ms, sizes in MB; `share` is the stall as a share of a step without a checkpoint."""

    way: str
    step_ms: float
    saving_step_ms: float
    stall_ms: float
    share: float
    total_s: float
    checkpoints: int
    checkpoint_mb: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the checkpoints go: its disk is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if environment.world() is None:
        found = mpiexec.find_mpiexec()
        if found is None:
            sys.exit(mpiexec.MISSING)
        import subprocess

        words = found.command([sys.executable, *sys.argv], options.ranks)
        sys.exit(subprocess.run(words, env=found.environment(), check=False).returncode)
    _measure(options)


def _measure(options: argparse.Namespace) -> None:
    from hpcpipe.job import load_job
    from hpcpipe.runtime import World
    from hpcpipe.train import Origin, train
    from hpcpipe.train.saver import Saver

    world = World()
    folder = Path(world.share(tempfile.mkdtemp(dir=options.folder) if world.rank == 0 else None))
    sizes = {"STEPS": options.steps, "LAYERS": options.layers, "DIM": options.dim, "RANKS": world.size}
    text = JOB
    for name, value in sizes.items():
        text = text.replace(name, str(value))
    path = folder / f"job-{world.rank}.toml"
    path.write_text(text, encoding="utf-8")
    begin = Saver._begin

    def waiting(self: Saver, done: int) -> None:
        record, self._record = self._record, lambda *_: None
        from hpcpipe.runtime import now

        since = now()
        begin(self, done)
        if self._thread is not None:
            self._thread.join()
        self._record = record
        record(done - 1, since, now(), 0)

    rows = []
    ways = (("none", "off", begin), ("asynchronous", options.every, begin), ("waiting", options.every, waiting))
    for way, every, method in ways:
        Saver._begin = method  # type: ignore[method-assign]
        overrides = [] if every == "off" else [f"checkpoint.every={every}"]
        run = folder / way
        if world.rank == 0:
            run.mkdir()
        world.barrier()
        train(load_job(path, overrides), world=world, run_directory=run, origin=Origin())
        world.barrier()
        if world.rank == 0:
            rows.append(_row(way, run))
    if world.rank == 0:
        _print(rows, options)
        shutil.rmtree(folder)


def _row(way: str, run: Path) -> Row:
    from hpcpipe.checkpoint import list_steps, read_manifest
    from hpcpipe.events import open_run
    from hpcpipe.plan import Kind

    log = open_run(run)
    stalls: dict[int, float] = {}
    ends = [max(rank.steps.t_end[at] for rank in log.ranks) for at in range(len(log.ranks[0].steps))]
    lengths = {at: (ends[at] - ends[at - 1]) * 1e-6 for at in range(3, len(ends))}  # the first ones are slow anyway
    for rank in log.ranks:
        events = rank.events
        for at in (events.kind == Kind.CHECKPOINT).nonzero()[0]:
            step = int(events.step[at])
            if step + 1 < len(ends):  # saving at the end holds up nothing
                stalls[step] = max(stalls.get(step, 0.0), (events.t_end[at] - events.t_start[at]) * 1e-6)
    saving = [length for at, length in lengths.items() if at - 1 in stalls]
    plain = [length for at, length in lengths.items() if at - 1 not in stalls]
    found = list_steps(run / "checkpoints")
    step_ms, stall_ms = statistics.median(plain), statistics.median(stalls.values()) if stalls else 0.0
    return Row(
        way,
        step_ms,
        statistics.median(saving) if saving else step_ms,
        stall_ms,
        stall_ms / step_ms,
        float(ends[-1] - ends[2]) * 1e-9,
        len(stalls),
        read_manifest(found[0]).num_bytes * 1e-6 if found else 0.0,
    )


def _print(rows: list[Row], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"name": "checkpoint", "rows": [asdict(row) for row in rows], "units": "ms, s, MB"}))
        return
    model = f"GPT, {options.layers} blocks of width {options.dim}, {options.ranks} ranks"
    table = Table(title=f"{model}, a checkpoint every {options.every} steps")
    for column in ("saving", "step ms", "step after one, ms", "stall ms", "stall/step", "run s", "checkpoints", "MB"):
        table.add_column(column, justify="left" if column == "saving" else "right")
    for row in rows:
        table.add_row(
            row.way,
            f"{row.step_ms:.1f}",
            f"{row.saving_step_ms:.1f}",
            f"{row.stall_ms:.2f}",
            f"{row.share:.1%}",
            f"{row.total_s:.2f}",
            str(row.checkpoints),
            f"{row.checkpoint_mb:.1f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
