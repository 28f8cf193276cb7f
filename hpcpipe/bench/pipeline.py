"""Schedules in real runs on emulated devices: speed over fixed 1F1B on the same draws, with the memory of each.

Each step starts together on all ranks, so it compares with the simulator's, and with torch.distributed.pipelining's.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from hpcpipe.bench import torch_pipelining
from hpcpipe.bench.emulated import Steps, emulated_job, measured, predicted
from hpcpipe.bench.ranks import run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.job import Job

if TYPE_CHECKING:
    from hpcpipe.runtime import World

RANKS = 8
STEPS = 9
WARM_UP = 3
"""Left out: the first messages, and what `critical` has measured by then."""

LATENCY_MS = 0.25
"""A twentieth of a forward, as in the simulated comparison; a message that is faster is held back."""


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the table: a schedule's settings. `torch` names the order that torch runs instead."""

    name: str
    hint: str
    dispatch: str
    more: tuple[str, ...] = ()
    torch: bool = False

    def overrides(self) -> list[str]:
        """Return the settings as a job takes them."""
        return [f'schedule.hint="{self.hint}"', f'schedule.dispatch="{self.dispatch}"', *self.more]


_PYRAMID = 'schedule.admission="pyramid"'
_TWICE = ('schedule.in_flight="2x"',)
CASES = (
    Case("fixed 1F1B", "1f1b", "fixed"),
    Case("fixed ZB-H1", "zb-h1", "fixed"),
    Case("fixed ZBV", "zbv", "fixed"),
    Case("fixed 2F2B", "kfkb", "fixed", ("schedule.k=2",)),
    Case("ready bf, 1F1B's caps", "bf", "ready", ('schedule.in_flight="1f1b"',)),
    Case("ready bf", "bf", "ready"),
    Case("ready bfw", "bfw", "ready"),
    Case("ready zb-h1", "zb-h1", "ready"),
    Case("ready zbv", "zbv", "ready"),
    Case("ready critical", "critical", "ready"),
    Case("ready bf, 2x", "bf", "ready", _TWICE),
    Case("ready bfw, 2x", "bfw", "ready", (*_TWICE, "schedule.stash={twice}")),
)
PYRAMIDS = (
    Case("pyramid, fixed 1F1B", "1f1b", "fixed", (_PYRAMID,)),
    Case("pyramid, fixed ZB-H1", "zb-h1", "fixed", (_PYRAMID,)),
    Case("pyramid, ready bfw", "bfw", "ready", (_PYRAMID,)),
    Case("pyramid, ready critical", "critical", "ready", (_PYRAMID,)),
)
"""Where the cost of a micro-batch is known before it enters."""

TORCH = tuple(Case(name, hint, "fixed", torch=True) for hint, name in torch_pipelining.NAMES.items())
QUICK = ("fixed 1F1B", "fixed ZB-H1", "ready zb-h1", "ready critical", "torch 1F1B")

_CONSTANT = f'{{ model = "constant", base_ms = {LATENCY_MS} }}'


def variabilities(stages: int) -> dict[str, tuple[str, str]]:
    """Return the rows of the table: how tasks and messages vary."""
    noise = '{{ model = "lognormal", base_ms = 0.5, sigma = 2.0, overtaking = {} }}'
    compute = {
        "none": '{ model = "none" }',
        "lognormal 0.3": '{ model = "lognormal", sigma = 0.3 }',
        "lognormal 0.6": '{ model = "lognormal", sigma = 0.6 }',
        "5 % of tasks 10x longer": '{ model = "heavy-tail", probability = 0.05, factor = 10.0 }',
        "one stage 1.5x slower": f'{{ model = "straggler", stage = {stages // 2}, factor = 1.5 }}',
        "encoder stages vary 0.8": f'{{ model = "encoder", stages = {max(1, stages // 4)}, sigma = 0.8 }}',
        "micro-batch cost 0.8": '{ model = "microbatch", sigma = 0.8 }',
    }
    rows = {name: (model, _CONSTANT) for name, model in compute.items()}
    rows["network, overtaking"] = compute["none"], noise.format("true")
    rows["network, in order"] = compute["none"], noise.format("false")
    return rows


KNOWN_COSTS = ("none", "one stage 1.5x slower", "encoder stages vary 0.8", "micro-batch cost 0.8")
QUICK_ROWS = ("none", "lognormal 0.6", "micro-batch cost 0.8")


def run(
    *, steps: int = STEPS, ranks: int = RANKS, quick: bool = False, progress: Callable[[], object] = lambda: None
) -> BenchTable | None:
    """Measure on so many ranks, or on those that a launcher has started; None on all of them but the first."""
    words = ["--steps", str(steps), *(["--quick"] if quick else [])]
    return run_on_ranks("pipeline", partial(_work, steps, quick), ranks=ranks, words=words, progress=progress)


def cases_of(variability: str, *, quick: bool, torch: bool) -> list[Case]:
    """Return the lines of one kind of variability."""
    cases = [*CASES, *(PYRAMIDS if variability in KNOWN_COSTS[2:] else ()), *(TORCH if torch else ())]
    return [case for case in cases if not quick or case.name in QUICK or case in PYRAMIDS[:2]]


def _work(steps: int, quick: bool, progress: Callable[[], object]) -> BenchTable | None:
    from hpcpipe.runtime import FailureGuard, World

    world = World()
    with FailureGuard(world.comm, place="the benchmark", stage=-1, host=world.host):
        return _measure(world, steps, quick, progress)


def _measure(world: "World", steps: int, quick: bool, progress: Callable[[], object]) -> BenchTable | None:
    rows = variabilities(world.size)
    chosen = {name: models for name, models in rows.items() if not quick or name in QUICK_ROWS}
    warm_up = min(WARM_UP, steps - 1)
    with_torch = torch_pipelining.available()
    results: dict[tuple[str, Case], tuple[Steps, Steps]] = {}
    plan = [(name, case) for name in chosen for case in cases_of(name, quick=quick, torch=with_torch)]
    plan.sort(key=lambda pair: pair[1].torch)  # ours first, before torch's threads and buffers are there
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as own:
        shared = Path(world.share(own))
        jobs = {pair: _job(Path(own), pair[1], chosen[pair[0]], world.size, steps) for pair in plan}
        ours = [pair for pair in plan if not pair[1].torch]
        for number, pair in enumerate(ours):
            folder = shared / f"run-{number}"
            if world.rank == 0:
                folder.mkdir()
            world.barrier()
            got = measured(jobs[pair], world, folder)
            if got is not None:
                results[pair] = got.after(warm_up), predicted(jobs[pair]).after(warm_up)
                progress()
        if len(ours) < len(plan):
            _run_torch(world, {pair: jobs[pair] for pair in plan if pair[1].torch}, results, warm_up, progress)
    return _table(world.size, steps - warm_up, list(chosen), plan, results) if world.rank == 0 else None


def _run_torch(
    world: "World",
    jobs: Mapping[tuple[str, Case], Job],
    results: dict,
    warm_up: int,
    progress: Callable[[], object],
) -> None:
    """Run torch's lines; its steps compare with the simulation of the same order."""
    with torch_pipelining.process_group(world):
        for pair, job in jobs.items():
            got = torch_pipelining.emulated_steps(job, world)
            if got is not None:
                like = predicted(job)
                results[pair] = Steps(got, like.in_flight, like.stash).after(warm_up), like.after(warm_up)
                progress()


def _job(folder: Path, case: Case, models: tuple[str, str], stages: int, steps: int) -> Job:
    compute, network = models
    microbatches = 4 * stages
    overrides = [f"parallel.pipeline={stages}", f"batch.microbatches={microbatches}", f"job.steps={steps}"]
    overrides += [f"variability.compute={compute}", f"variability.network={network}"]
    return emulated_job(folder, [*overrides, *(each.format(twice=2 * stages) for each in case.overrides())])


def _table(
    stages: int, counted: int, names: Sequence[str], plan: Sequence[tuple[str, Case]], results: Mapping
) -> BenchTable:
    rows: list[Row] = []
    for name in names:
        lines = [case for row, case in plan if row == name]
        base, base_predicted = results[name, lines[0]]
        for case in lines:
            real, like = results[name, case]
            rows.append(
                (
                    name,
                    case.name,
                    fmean(real.ms),
                    fmean(like.ms),
                    100.0 * (fmean(real.ms) / fmean(like.ms) - 1.0),
                    _speed(base, real),
                    _speed(base_predicted, like),
                    real.in_flight,
                    real.stash,
                )
            )
    torch_note = "torch runs the same draws over gloo by sleeping, from its own or (ZB-H1) a loaded order"
    return BenchTable(
        name="pipeline",
        title=f"emulated runs: {stages} stages, {4 * stages} micro-batches of 5 + 10 ms (5 of it W), equal memory",
        columns=(
            Column("variability"),
            Column("schedule"),
            Column("run", "ms", 1),
            Column("simulated", "ms", 1),
            Column("more", "%", 1),
            Column("x 1F1B", "x"),
            Column("simulated x", "x"),
            Column("in flight", "micro-batches", 1),
            Column("stash", "micro-batches", 1),
        ),
        rows=rows,
        notes=(
            f"mean of {counted} steps, each from a common start; devices are emulated, ranks and messages are real",
            "x 1F1B: mean over the steps of (time of fixed 1F1B / time) on the same draws",
            "more: what a run takes longer than the simulation, which counts drawn times and delays only",
            "in flight, stash: most micro-batches of a stage without backward, and without weight gradient",
            f"a message takes {LATENCY_MS} ms, under network noise 0.5 exp(N(0, 2)) ms",
            "critical makes new orders after steps 2, 4, 8 of a run; the time that takes lies between the steps here",
            torch_note if any(case.torch for _, case in plan) else "torch's pipelining is not installed here",
        ),
    )


def _speed(base: Steps, other: Steps) -> float:
    return fmean(one / two for one, two in zip(base.ms, other.ms, strict=True))
