"""Print what the order in which micro-batches enter is worth under each schedule, and its memory; simulated.

The figures are those of schedules.py: mean over the seeds of (time of fixed 1F1B as given / time). Cost belongs to a
micro-batch and goes where its admission puts it; noise belongs to a place and a stage and stays, whoever comes there.
`auto` knows predictions only; `--error` makes them wrong. "bound" is no schedule but a limit: the longest, over the
stages, of the cheapest way to the stage and all its work.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp

from flow_shop import johnson_order, neh_order
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from schedules import CANDIDATES, UNIT_NS, USUAL, Candidate, Setting, fixed, ready_v, variabilities

from hpcpipe.plan import ADMISSIONS, Kind, Limits, Placement, Schedule, Task, admission_order
from hpcpipe.plan.admission import peaked_order
from hpcpipe.plan.draws import normal
from hpcpipe.simulate import Compute, Link, Lognormal, MicrobatchCost, Network, Steady, simulate_step
from hpcpipe.simulate.admission import StashLimit, auto_admission, weighted_peaks

COLUMNS = ("1F1B fixed", "ZB-H1 fixed", "ZBV fixed", "bf", "bfw", "zb-h1", "zbv")
SIMPLE = (*ADMISSIONS, "johnson", "neh")
WITHIN = "auto, stash of as-given"
WEIGHT = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """What varies: a cost that can be predicted, and noise that cannot."""

    cost: MicrobatchCost | None
    noise: Compute

    def factor(self, seed: int, stage: int, index: int) -> float:
        """Return the cost of a micro-batch of the global batch on a stage."""
        if self.cost is None or (self.cost.stages is not None and stage >= self.cost.stages):
            return 1.0
        return self.cost.factor(seed=seed, step=0, microbatch=index)


def rows(stages: int) -> dict[str, Row]:
    """Return the rows of schedules.py and one where both vary."""
    found = {}
    for name, model in variabilities(stages).items():
        found[name] = Row(model, Steady()) if isinstance(model, MicrobatchCost) else Row(None, model)
    found["micro-batch cost 0.8 and lognormal 0.3"] = Row(MicrobatchCost(0.8), Lognormal(0.3))
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One step to be run: a schedule, what varies and the seed of its draws."""

    schedule: Schedule
    row: Row
    seed: int
    error: float

    def usual(self, kind: Kind) -> float:
        """Return the usual duration of a kind (ns)."""
        whole = USUAL[kind] + (USUAL[Kind.W] if kind is Kind.B and not self.schedule.split else 0.0)
        return whole * UNIT_NS / self.schedule.placement.chunks

    def real(self, order: Sequence[int]) -> Callable[[int, Task], int]:
        """Return the durations when micro-batches enter in this order."""

        def duration(stage: int, task: Task) -> int:
            mean = self.usual(task.kind) * self.row.factor(self.seed, stage, order[task.microbatch])
            return round(self.row.noise.vary(mean, seed=self.seed, step=0, stage=stage, task=task))

        return duration

    def predicted(self, stage: int, task: Task) -> int:
        """Return the duration that is expected of a task of the global batch."""
        wrong = exp(self.error * normal(self.seed, 7, task.microbatch)) if self.error else 1.0
        return round(self.usual(task.kind) * self.row.factor(self.seed, stage, task.microbatch) * wrong)

    def order(self, rule: str, latency: int) -> Sequence[int]:
        """Return the admission order of a rule, from predictions."""
        count, stages = self.schedule.microbatches, self.schedule.placement.stages
        if rule == "auto":
            return auto_admission(self.schedule, duration=self.predicted, latency=latency).order
        by_stage = [[float(self.predicted(stage, Task(Kind.F, m))) for stage in range(stages)] for m in range(count)]
        totals = [sum(costs) for costs in by_stage]
        if rule == WITHIN:
            weights = tuple(self.weight(m) for m in range(count))
            as_given = self.run(range(count), Link())
            limit = StashLimit(weights, as_given[2])
            return auto_admission(self.schedule, duration=self.predicted, latency=latency, limit=limit).order
        if rule == "johnson":
            half = stages // 2
            return johnson_order([sum(costs[:half]) for costs in by_stage], [sum(costs[half:]) for costs in by_stage])
        return neh_order(by_stage) if rule == "neh" else admission_order(rule, totals)

    def weight(self, index: int) -> int:
        """Return the activations of a micro-batch in one chunk, where they are in proportion to its cost."""
        return round(WEIGHT * self.row.factor(self.seed, 0, index) / self.schedule.placement.chunks)

    def run(self, order: Sequence[int], link: Link) -> tuple[int, float, int]:
        """Return the step time (ns) and the peak stash, in micro-batches and in their weights."""
        step = simulate_step(self.schedule, duration=self.real(order), arrival=Network(link, self.seed).arrival)
        weighted = max(weighted_peaks(step, [self.weight(index) for index in order]))
        return step.step_ns, max(step.peak_stash) / self.schedule.placement.chunks, weighted

    def bound(self, latency: int) -> float:
        """Return what no order can beat (ns), as given: the longest of cheapest way in plus work, over the stages."""
        placement, places = self.schedule.placement, range(self.schedule.microbatches)
        duration = self.real(places)
        kinds = (Kind.F, Kind.B, Kind.W) if self.schedule.split else (Kind.F, Kind.B)
        longest = 0.0
        for stage in range(placement.stages):
            way_in = min(sum(duration(before, Task(Kind.F, m)) + latency for before in range(stage)) for m in places)
            chunks = range(placement.chunks)
            work = sum(duration(stage, Task(kind, m, chunk)) for kind in kinds for m in places for chunk in chunks)
            longest = max(longest, way_in + work)
        return longest


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--stages", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument(
        "--error", type=float, default=0.0, help="spread of prediction / truth, as sigma of its logarithm"
    )
    parser.add_argument("--latency", type=float, default=0.05, help="per message, in units of one forward")
    parser.add_argument("--network-sigma", type=float, default=0.0, help="latency times exp(sigma z)")
    parser.add_argument("--in-order", action="store_true", help="messages of a link do not overtake each other")
    parser.add_argument("--tried", action="store_true", help="print other peaks and other caps instead")
    options = parser.parse_args()
    link = Link(options.latency * UNIT_NS, options.network_sigma, not options.in_order)
    quiet = round(options.latency * UNIT_NS)
    if options.tried:
        Console(width=160).print(tried(options.stages, options.microbatches, options.seeds, link))
        return
    by_name = {candidate.name: candidate for candidate in CANDIDATES}
    columns: list[Candidate] = [by_name[name] for name in COLUMNS]
    speed: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    stash: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    table = rows(options.stages)
    rules = {name: (*SIMPLE, "auto", WITHIN) if row.cost else ("as-given", "auto") for name, row in table.items()}
    with Progress(transient=True) as progress:
        total = sum(map(len, rules.values())) * len(columns) * options.seeds
        bar = progress.add_task("simulating", total=total)
        for name, row in table.items():
            for seed in range(options.seeds):
                base = 0
                for column in columns:
                    step = Step(column.make(Setting(options.stages, options.microbatches)), row, seed, options.error)
                    for rule in rules[name]:
                        if rule == WITHIN and row.cost and row.cost.stages:
                            progress.advance(bar)
                            continue
                        time, peak, weighted = step.run(step.order(rule, quiet), link)
                        base = base or time
                        speed[name, rule, column.name].append(base / time)
                        if name == "micro-batch cost 0.8":
                            stash[rule, column.name].append((peak, weighted / WEIGHT))
                        progress.advance(bar)
                    if row.cost is None or row.noise == Steady():
                        lowest = step.bound(0 if link.sigma else quiet)
                        speed[name, "bound", "V" if step.schedule.placement.chunks > 1 else "1"].append(base / lowest)
    console = Console(width=160)
    console.print(speeds(speed, table, rules, options, link))
    console.print(memories(stash, rules["micro-batch cost 0.8"]))
    pairs = [(name, column.name) for name in table for column in columns]
    worst = min(pairs, key=lambda pair: _gain(speed, *pair))
    console.print(f"auto against as-given, worst of all: {_gain(speed, *worst):.3f} ({worst[0]}, {worst[1]})")


def tried(stages: int, count: int, seeds: int, link: Link) -> Table:
    """Return what the pyramid gives under other caps, with other peaks and with more memory, where costs are known."""

    def by_chunk(caps: Callable[[int], tuple[int, int]]) -> Schedule:
        limits = tuple(Limits(stash_by_chunk=caps(stage)) for stage in range(stages))
        return Schedule("zbv", "ready", Placement(stages, 2, "v"), count, limits, split=True, ordered=False)

    def flat(hint: str) -> Schedule:
        return Schedule(
            hint, "ready", Placement(stages), count, (Limits(stages, stages),) * stages, True, ordered=False
        )

    schedules = {
        "zbv": by_chunk(lambda s: (2 * stages - 1 - s, s + 1)),
        "zbv, one of chunk 0's places for chunk 1": by_chunk(lambda s: (2 * stages - 2 - s, s + 2)),
        "zbv, half the slope": by_chunk(lambda s: (2 * stages - 3 - s // 2, 3 + s // 2)),
        "zbv, flat": by_chunk(lambda _: (stages + 1, stages - 1)),
        "zbv, memory x 2": ready_v("zbv", 2.0)(Setting(stages, count)),
        "zbv, memory x 4": ready_v("zbv", 4.0)(Setting(stages, count)),
        "zb-h1, caps flat": flat("zb-h1"),
        "bfw, caps flat": flat("bfw"),
        "1F1B fixed": fixed("1f1b")(Setting(stages, count)),
        "ZBV fixed": fixed("zbv")(Setting(stages, count)),
    }
    row = Row(MicrobatchCost(0.8), Steady())
    shown = Table(title="micro-batch cost 0.8, admission by cost: what else was tried")
    shown.add_column("schedule")
    for heading in ("pyramid", "peak at 1/4", "peak at 3/4", "dear and cheap in turn", "memory"):
        shown.add_column(heading, justify="right")
    base = [Step(schedules["1F1B fixed"], row, seed, 0.0).run(range(count), link)[0] for seed in range(seeds)]
    for name, schedule in schedules.items():
        cells: list[list[float]] = [[] for _ in range(4)]
        memory = 0.0
        for seed in range(seeds):
            costs = [row.factor(seed, 0, index) for index in range(count)]
            rising = admission_order("ascending", costs)
            in_turn = [index for pair in zip(rising, reversed(rising), strict=True) for index in pair][:count]
            orders = [*(peaked_order(costs, early=share) for share in (0.5, 0.25, 0.75)), in_turn]
            for cell, order in zip(cells, orders, strict=True):
                time, peak, _ = Step(schedule, row, seed, 0.0).run(order, link)
                cell.append(base[seed] / time)
                memory = max(memory, peak)
        shown.add_row(name, *(f"{statistics.fmean(cell):.2f}" for cell in cells), f"{memory:g}")
    return shown


def _gain(speed: dict[tuple[str, str, str], list[float]], name: str, column: str) -> float:
    return statistics.fmean(speed[name, "auto", column]) / statistics.fmean(speed[name, "as-given", column])


def speeds(
    speed: dict[tuple[str, str, str], list[float]],
    table: dict[str, Row],
    rules: dict[str, tuple[str, ...]],
    options: argparse.Namespace,
    link: Link,
) -> Table:
    """Return the table of speeds."""
    network = f"latency {options.latency:g}" + (f" · exp(N(0, {link.sigma:g}))" if link.sigma else "")
    order = "free to overtake" if link.overtaking else "in order"
    shown = Table(
        title=f"speed against fixed 1F1B as given: {options.stages} stages, {options.microbatches} micro-batches, "
        f"{network}, messages {order}, predictions wrong by {options.error:.0%}, {options.seeds} seeds"
    )
    for heading in ("variability", "admission", *COLUMNS, "bound", "bound V"):
        shown.add_column(heading, justify="left" if heading in ("variability", "admission") else "right")
    for name in table:
        for rule in rules[name]:
            cells = [speed[name, rule, column] for column in COLUMNS] + [speed[name, "bound", shape] for shape in "1V"]
            if cells[0]:
                first = rule == "as-given"
                text = [f"{statistics.fmean(cell):.2f}" if cell else "-" for cell in cells]
                shown.add_row(name if first else "", rule, *text[:-2], *(text[-2:] if first else ("", "")))
        shown.add_section()
    return shown


def memories(stash: dict[tuple[str, str], list[tuple[float, float]]], rules: Sequence[str]) -> Table:
    """Return the table of peaks."""
    shown = Table(title="micro-batch cost 0.8: the most micro-batches that a stage stashes / the most of their cost")
    shown.add_column("admission")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    for rule in rules:
        cells = []
        for column in COLUMNS:
            counts, costs = zip(*stash[rule, column], strict=True)
            cells.append(f"{max(counts):g} / {statistics.fmean(costs):.1f}")
        shown.add_row(rule, *cells)
    return shown


if __name__ == "__main__":
    main()
