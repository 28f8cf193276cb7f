"""kFkB on a network that others preempt, beside Ada-Grouper's 4-30 % over 1F1B (arXiv 2303.01675), simulated.

The paper's abstract has the figures, not the clusters, models and traces; every row states its own network.
"""

from collections.abc import Callable

from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.plan import Schedule
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.delays import Bursts
from hpcpipe.plan.hints import placement_of
from hpcpipe.simulate import Link, LinkMessages, Scenario, SimulatedRun, UsualTimes, simulate_run

STAGES, MICROBATCHES = 8, 32
FORWARD_MS, BACKWARD_MS = 10.0, 20.0
QUIET_MS = 0.5
FACTORS = (1.0, 5.0, 10.0, 20.0, 40.0)
EVERY_MS, LENGTH_MS = 400.0, 200.0
GROUPS = (1, 2, 4, 8)
NS = 1e6


def run(steps: int = 4, *, progress: Callable[[], object] = lambda: None) -> BenchTable:
    """Simulate every network for some steps; `progress` is called after each."""
    rows: list[Row] = []
    for factor in FACTORS:
        fixed = [_simulate(steps, factor, k, "fixed") for k in GROUPS]
        best = min(range(len(GROUPS)), key=lambda i: fixed[i].wall_ns)
        ready = _simulate(steps, factor, GROUPS[best], "ready")
        rows.append(
            (
                QUIET_MS * factor,
                *(fixed[0].wall_ns / each.wall_ns for each in fixed),
                GROUPS[best],
                max(fixed[best].peak_stash),
                fixed[0].wall_ns / ready.wall_ns,
                max(ready.peak_stash),
            )
        )
        progress()
    return BenchTable(
        name="paper-adagrouper",
        title="speedup over fixed 1F1B on a preempted network; Ada-Grouper reports 1.04 to 1.30",
        columns=(
            Column("burst ms", "ms", digits=1),
            *(Column(f"{k}F{k}B", "x") for k in GROUPS),
            Column("best k"),
            Column("mem", "micro-batches"),
            Column("ready", "x"),
            Column("mem ready", "micro-batches"),
        ),
        rows=rows,
        notes=(
            f"{STAGES} stages, {MICROBATCHES} micro-batches, forward {FORWARD_MS:g} ms, backward {BACKWARD_MS:g} ms",
            f"a message takes {QUIET_MS:g} ms, but burst ms in {LENGTH_MS:g} of every {EVERY_MS:g} ms",
            "mem: most micro-batches that a stage holds; 1F1B holds 8. The gain of a larger k is bought with it",
            "ready: the best kFkB as hint under readiness-first dispatch, with kFkB's own caps k(S - s)",
            "the paper's models, clusters and traces are not at hand, so these networks are not its own",
        ),
    )


def _simulate(steps: int, factor: float, k: int, dispatch: str) -> SimulatedRun:
    placement = placement_of("kfkb", stages=STAGES)
    limits = limits_for(placement, hint="kfkb", microbatches=MICROBATCHES, split=False, k=k)
    schedule = Schedule("kfkb", dispatch, placement, MICROBATCHES, limits, k=k)
    times = UsualTimes([FORWARD_MS * NS] * STAGES, [BACKWARD_MS * NS] * STAGES, [0.0] * STAGES)
    delay = Bursts(QUIET_MS * NS, EVERY_MS * NS, LENGTH_MS * NS, factor)
    return simulate_run(Scenario(schedule, times, LinkMessages(Link(delay=delay))), range(steps))
