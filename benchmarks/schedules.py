"""Print how schedules fare against fixed 1F1B under variability, with the memory of each beside its speed; simulated.

One forward takes 1, a backward 2 of which the weight gradient is 1; every schedule meets the same draws. Figures are
the mean over the seeds of (time of fixed 1F1B / time of the schedule). Memory is the most activations that any stage
stashes until their weight gradients are done, in whole stages' micro-batches.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.plan import RULES, Kind, Limits, Placement, Schedule, Task, chunk_profile, in_flight_caps
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.simulate import (
    Compute,
    HeavyTail,
    Link,
    Lognormal,
    MicrobatchCost,
    Network,
    Steady,
    Straggler,
    simulate_step,
)

UNIT_NS = 1_000_000
USUAL = {Kind.F: 1.0, Kind.B: 1.0, Kind.W: 1.0}


def variabilities(stages: int) -> dict[str, Compute]:
    """Return the rows of the table."""
    return {
        "none": Steady(),
        "lognormal 0.3": Lognormal(0.3),
        "lognormal 0.6": Lognormal(0.6),
        "5 % of tasks 10 x longer": HeavyTail(0.05, 10.0),
        "one stage 1.5 x slower": Straggler(stages // 2, 1.5),
        "encoder stages vary 0.8": MicrobatchCost(0.8, stages=max(1, stages // 4)),
        "micro-batch cost 0.8": MicrobatchCost(0.8),
    }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column: a schedule for so many stages and micro-batches."""

    name: str
    make: Callable[[int, int], Schedule]


def fixed(hint: str) -> Callable[[int, int], Schedule]:
    """Return a maker of a fixed order."""

    def make(stages: int, count: int) -> Schedule:
        placement = placement_of(hint, stages=stages)
        return Schedule(hint, "fixed", placement, count, (Limits(),) * stages, split=hint in SPLIT)

    return make


def ready(hint: str, in_flight: str, stash: float | None = None) -> Callable[[int, int], Schedule]:
    """Return a maker of a readiness-first schedule; a stash cap (in stages) splits the backward."""

    def make(stages: int, count: int) -> Schedule:
        placement = Placement(stages) if hint in RULES else placement_of(hint, stages=stages)
        caps = in_flight_caps(in_flight, stages=stages, microbatches=count)
        most = None if stash is None else round(stash * stages * placement.chunks)
        limits = tuple(Limits(cap * placement.chunks, most) for cap in caps)
        return Schedule(hint, "ready", placement, count, limits, split=stash is not None, ordered=False)

    return make


def ready_v(hint: str, scale: float = 1.0) -> Callable[[int, int], Schedule]:
    """Return a maker of a readiness-first schedule of two chunks in a V with ZBV's own caps by chunk."""

    def make(stages: int, count: int) -> Schedule:
        limits = (Limits(stash_by_chunk=chunk_profile(stage=s, stages=stages, scale=scale)) for s in range(stages))
        return Schedule(hint, "ready", Placement(stages, 2, "v"), count, tuple(limits), split=True, ordered=False)

    return make


CANDIDATES = [
    Candidate("1F1B fixed", fixed("1f1b")),
    Candidate("ZB-H1 fixed", fixed("zb-h1")),
    Candidate("ZBV fixed", fixed("zbv")),
    Candidate("bf 1F1B caps", ready("bf", "1f1b")),
    Candidate("bf", ready("bf", "equal-memory")),
    Candidate("bfw", ready("bfw", "equal-memory", 1.0)),
    Candidate("zb-h1", ready("zb-h1", "equal-memory", 1.0)),
    Candidate("zbv", ready_v("zbv")),
    Candidate("bfw in V", ready_v("bfw")),
    Candidate("bf 2x", ready("bf", "2x")),
    Candidate("bfw 2x", ready("bfw", "2x", 2.0)),
    Candidate("zbv 2x", ready_v("zbv", 2.0)),
]


def simulate(schedule: Schedule, model: Compute, link: Link, seed: int) -> tuple[int, float]:
    """Return the step's length (ns) and the peak stash in whole stages' micro-batches."""
    chunks = schedule.placement.chunks

    def duration(stage: int, task: Task) -> int:
        whole = USUAL[task.kind] + (USUAL[Kind.W] if task.kind is Kind.B and not schedule.split else 0.0)
        return round(model.vary(whole * UNIT_NS / chunks, seed=seed, step=0, stage=stage, task=task))

    network = Network(link, seed)
    step = simulate_step(schedule, duration=duration, arrival=network.arrival)
    return step.step_ns, max(step.peak_stash) / chunks


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--latency", type=float, default=0.05, help="per message, in units of one forward")
    parser.add_argument("--network-sigma", type=float, default=0.0, help="latency times exp(sigma z)")
    parser.add_argument("--in-order", action="store_true", help="messages of a link do not overtake each other")
    options = parser.parse_args()
    link = Link(options.latency * UNIT_NS, options.network_sigma, not options.in_order)
    network = f"latency {options.latency:g}" + (f" · exp(N(0, {options.network_sigma:g}))" if link.sigma else "")
    order = "in order" if options.in_order else "free to overtake"
    table = Table(
        title=f"speed against fixed 1F1B: {options.stages} stages, {options.microbatches} micro-batches, "
        f"{network}, messages {order}, {options.seeds} seeds"
    )
    table.add_column("variability")
    for candidate in CANDIDATES:
        table.add_column(candidate.name, justify="right")
    memory = [0.0] * len(CANDIDATES)
    for name, model in track(variabilities(options.stages).items(), description="simulating", transient=True):
        speeds: list[list[float]] = [[] for _ in CANDIDATES]
        for seed in range(options.seeds):
            base = 0
            for column, candidate in enumerate(CANDIDATES):
                time, peak = simulate(candidate.make(options.stages, options.microbatches), model, link, seed)
                base = base or time
                speeds[column].append(base / time)
                memory[column] = max(memory[column], peak)
        table.add_row(name, *(f"{statistics.fmean(column):.2f}" for column in speeds))
    table.add_section()
    table.add_row("memory", *(f"{peak:g}" for peak in memory))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
