"""Print how schedules fare against fixed 1F1B under variability, with the memory of each beside its speed; simulated.

One forward takes 1, a backward 2 of which the weight gradient is 1; every schedule meets the same draws. Figures are
the mean over the seeds of (time of fixed 1F1B / time of the schedule). Memory is the most activations that any stage
stashes until their weight gradients are done, in whole stages' micro-batches.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hpcpipe.plan import (
    RULES,
    Kind,
    Limits,
    OnlineProfile,
    Placement,
    Profile,
    Schedule,
    Task,
    advise,
    chunk_profile,
    gather,
    in_flight_caps,
)
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.simulate import (
    Compute,
    HeavyTail,
    Link,
    Lognormal,
    MicrobatchCost,
    Network,
    SimulatedStep,
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
class Setting:
    """What a schedule is made for, and the times measured in an earlier step, by number of chunks."""

    stages: int
    count: int
    profiles: dict[int, Profile] = field(default_factory=dict)


Maker = Callable[[Setting], Schedule]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A column: a schedule for a setting."""

    name: str
    make: Maker


def fixed(hint: str) -> Maker:
    """Return a maker of a fixed order."""

    def make(setting: Setting) -> Schedule:
        stages, count = setting.stages, setting.count
        placement = placement_of(hint, stages=stages)
        return Schedule(hint, "fixed", placement, count, (Limits(),) * stages, split=hint in SPLIT)

    return make


def ready(hint: str, in_flight: str, stash: float | None = None) -> Maker:
    """Return a maker of a readiness-first schedule; a stash cap (in stages) splits the backward."""

    def make(setting: Setting) -> Schedule:
        stages, count = setting.stages, setting.count
        placement = Placement(stages) if hint in RULES else placement_of(hint, stages=stages)
        caps = in_flight_caps(in_flight, stages=stages, microbatches=count)
        most = None if stash is None else round(stash * stages * placement.chunks)
        limits = tuple(Limits(cap * placement.chunks, most) for cap in caps)
        return Schedule(hint, "ready", placement, count, limits, split=stash is not None, ordered=False)

    return make


def ready_v(hint: str, scale: float = 1.0) -> Maker:
    """Return a maker of a readiness-first schedule of two chunks in a V with ZBV's own caps by chunk."""

    def make(setting: Setting) -> Schedule:
        placement = Placement(setting.stages, 2, "v")
        limits = _limits_of_v(setting.stages, scale)
        return Schedule(hint, "ready", placement, setting.count, limits, split=True, ordered=False)

    return make


def critical(dispatch: str, chunks: int, scale: float = 1.0) -> Maker:
    """Return a maker of `critical` from the measured profile, with equal memory's caps if `scale` is 1."""

    def make(setting: Setting) -> Schedule:
        stages, count, profile = setting.stages, setting.count, setting.profiles[chunks]
        limits = _limits_of_v(stages, scale) if chunks == 2 else _equal_memory(stages, count)
        if dispatch == "fixed":
            limits = (Limits(),) * stages
        placement = Placement(stages, chunks, "v")
        return Schedule("critical", dispatch, placement, count, limits, split=True, ordered=False, profile=profile)

    return make


def advised(setting: Setting) -> Schedule:
    """Return `critical` with the chunks and the dispatch that suit the measured profile."""
    advice = advise(setting.profiles[1])
    return critical(advice.dispatch, advice.chunks)(setting)


def _limits_of_v(stages: int, scale: float = 1.0) -> tuple[Limits, ...]:
    return tuple(Limits(stash_by_chunk=chunk_profile(stage=s, stages=stages, scale=scale)) for s in range(stages))


def _equal_memory(stages: int, count: int) -> tuple[Limits, ...]:
    caps = in_flight_caps("equal-memory", stages=stages, microbatches=count)
    return tuple(Limits(cap, stages) for cap in caps)


CANDIDATES = [
    Candidate("1F1B fixed", fixed("1f1b")),
    Candidate("ZB-H1 fixed", fixed("zb-h1")),
    Candidate("ZBV fixed", fixed("zbv")),
    Candidate("bf 1F1B caps", ready("bf", "1f1b")),
    Candidate("bf", ready("bf", "equal-memory")),
    Candidate("bfw", ready("bfw", "equal-memory", 1.0)),
    Candidate("zb-h1", ready("zb-h1", "equal-memory", 1.0)),
    Candidate("zbv", ready_v("zbv")),
    Candidate("critical 1 fixed", critical("fixed", 1)),
    Candidate("critical V fixed", critical("fixed", 2)),
    Candidate("critical 1", critical("ready", 1)),
    Candidate("critical V", critical("ready", 2)),
    Candidate("advised", advised),
    Candidate("bf 2x", ready("bf", "2x")),
    Candidate("bfw 2x", ready("bfw", "2x", 2.0)),
    Candidate("zbv 2x", ready_v("zbv", 2.0)),
    Candidate("critical V 2x", critical("ready", 2, 2.0)),
]
BEST_FIXED = ("1F1B fixed", "ZB-H1 fixed", "ZBV fixed")


def simulate(schedule: Schedule, model: Compute, link: Link, seed: int, step: int = 0) -> SimulatedStep:
    """Run one step on the draws of a seed."""
    chunks = schedule.placement.chunks

    def duration(stage: int, task: Task) -> int:
        whole = USUAL[task.kind] + (USUAL[Kind.W] if task.kind is Kind.B and not schedule.split else 0.0)
        return round(model.vary(whole * UNIT_NS / chunks, seed=seed, step=step, stage=stage, task=task))

    return simulate_step(schedule, duration=duration, arrival=Network(link, seed, step).arrival)


def measured(stages: int, count: int, model: Compute, link: Link, seed: int) -> dict[int, Profile]:
    """Return what each stage measures in the step before, for one chunk and for two."""
    empty = Setting(stages, count)
    profiles = {}
    for chunks, make in ((1, ready("zb-h1", "equal-memory", 1.0)), (2, ready_v("zbv"))):
        step = simulate(make(empty), model, link, seed, step=1)
        meters = [OnlineProfile(chunks=chunks) for _ in range(stages)]
        for meter, rows in zip(meters, step.rows, strict=True):
            for row in rows:
                if row.task is not None:
                    meter.add(row.task, row.end - row.start)
        for message in step.messages:
            meters[message.target].add_delay(message.arrived - message.sent)
        profiles[chunks] = gather([row for meter in meters if (row := meter.end_step()) is not None])
    return profiles


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", metavar="COLUMN", help="columns to print beside fixed 1F1B, ZB-H1 and ZBV")
    parser.add_argument("--latency", type=float, default=0.05, help="per message, in units of one forward")
    parser.add_argument("--network-sigma", type=float, default=0.0, help="latency times exp(sigma z)")
    parser.add_argument("--in-order", action="store_true", help="messages of a link do not overtake each other")
    options = parser.parse_args()
    link = Link(options.latency * UNIT_NS, options.network_sigma, not options.in_order)
    network = f"latency {options.latency:g}" + (f" · exp(N(0, {options.network_sigma:g}))" if link.sigma else "")
    order = "in order" if options.in_order else "free to overtake"
    wanted = [c for c in CANDIDATES if options.only is None or c.name in (*BEST_FIXED, *options.only)]
    table = Table(
        title=f"speed against fixed 1F1B: {options.stages} stages, {options.microbatches} micro-batches, "
        f"{network}, messages {order}, seeds {options.first_seed} to {options.first_seed + options.seeds - 1}",
        caption="last column: advised against the best fixed order of the literature (1F1B, ZB-H1, ZBV)",
    )
    table.add_column("variability", no_wrap=True)
    for candidate in wanted:
        table.add_column(candidate.name, justify="right")
    table.add_column("gain", justify="right")
    memory = dict.fromkeys((c.name for c in wanted), 0.0)
    for name, model in track(variabilities(options.stages).items(), description="simulating", transient=True):
        speeds: dict[str, list[float]] = {candidate.name: [] for candidate in wanted}
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            profiles = measured(options.stages, options.microbatches, model, link, seed)
            setting = Setting(options.stages, options.microbatches, profiles)
            base = 0
            for candidate in wanted:
                schedule = candidate.make(setting)
                step = simulate(schedule, model, link, seed)
                base = base or step.step_ns
                speeds[candidate.name].append(base / step.step_ns)
                peak = max(step.peak_stash) / schedule.placement.chunks
                memory[candidate.name] = max(memory[candidate.name], peak)
        means = {column: statistics.fmean(values) for column, values in speeds.items()}
        gain = means["advised"] / max(means[column] for column in BEST_FIXED) - 1.0 if "advised" in means else None
        table.add_row(name, *(f"{mean:.2f}" for mean in means.values()), "" if gain is None else f"{gain:+.1%}")
    table.add_section()
    table.add_row("memory", *(f"{peak:g}" for peak in memory.values()), "")
    Console(width=max(110, 40 + 12 * len(wanted))).print(table)


if __name__ == "__main__":
    main()
