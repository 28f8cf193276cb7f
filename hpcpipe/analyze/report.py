"""The report for people: one sentence, then tables of classes, ranks, efficiencies and the critical path (rich).

It shows the numbers of results.py and computes none but shares.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcpipe.analyze.results import RankReport, Report
from hpcpipe.analyze.words import MEANING, NAME, SHORT
from hpcpipe.plan import USEFUL, TimeClass

K = TypeVar("K")

_MANY_RANKS = 32
_LARGEST = 6
_WAITS = 5
_PARTS = 5
_DECISIONS = 12


def render_text(report: Report) -> RenderableType:
    """Return the report of one run."""
    parts: list[RenderableType] = [_head(report), _sentence(report), _classes(report), _ranks(report)]
    parts += [_efficiency(report), _over_time(report), _decisions(report)]
    parts += [_path(report), _waits(report), *gaps((report,))]
    return Group(*parts)


def _head(report: Report) -> Text:
    first, last = report.steps
    mesh = " x ".join(
        f"{name} {size}" for name, size in zip(("pipeline", "data", "tensor"), report.mesh, strict=True) if size > 1
    )
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    ranks = f"{report.world_size} rank{'s' if report.world_size > 1 else ''}" + (f" ({mesh})" if mesh else "")
    line = Text(report.description.title or report.run, style="bold")
    job = f", Slurm job {report.job_id}" if report.job_id else ""
    line.append(f"\n{ranks}, {steps}{job}", style="not bold")
    lengths = report.step_ns
    if report.num_steps > 1:
        times = f", {_ms(lengths.median)} a step (p10 {_ms(lengths.p10)}, p90 {_ms(lengths.p90)})"
    else:
        times = f", {_ms(lengths.median)} long"
    line.append(times, style="not bold")
    speed = report.throughput
    if speed.tokens_per_s:
        line.append(f"\n{speed.tokens_per_s:,.0f} tokens/s", style="not bold")
        if speed.model_flops_per_token:
            line.append(f", {speed.model_tflops_per_s:.3g} model TFLOP/s", style="not bold")
        if speed.mfu:
            peak = f"{report.world_size} x {speed.peak_tflops:g} TFLOP/s"
            line.append(f", MFU {speed.mfu:.1%} of {peak}", style="not bold")
    return line


def _sentence(report: Report) -> RenderableType:
    whole = sum(report.classes.values())
    lost = {each: ns for each, ns in report.classes.items() if each not in USEFUL and ns}
    text = Text(f"{1 - report.bubble_ratio:.1%} of the ranks' time is useful work. ")
    if lost:
        worst = max(lost, key=lambda each: lost[each])
        text.append(f"Most of the rest, {lost[worst] / whole:.1%}, is {NAME[worst]}", style="bold")
        text.append(f": {MEANING[worst]}.")
    else:
        text.append("Nothing is lost.")
    stages, microbatches = report.mesh[0], report.description.microbatches
    if stages > 1 and microbatches:
        fixed = (stages - 1) / (microbatches + stages - 1)
        text.append(f" The bubble is {report.bubble_ratio:.1%}; a GPipe or 1F1B of even stages without any delay has")
        text.append(f" {fixed:.1%} ({stages} stages, {microbatches} micro-batches).")
    return Padding(text, (1, 0, 0, 0))


def _classes(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("where the time went", no_wrap=True)
    table.add_column("ms a step", justify="right", overflow="fold")
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("which means", style="dim")
    whole, worst = sum(report.classes.values()), _worst(report)
    for each, ns in report.classes.items():
        if ns:
            style = "bold" if each is worst else ""
            table.add_row(NAME[each], _per_step(report, each), f"{ns / whole:.1%}", MEANING[each], style=style)
    table.add_section()
    mean = f"{report.wall_ns / report.num_steps / 1e6:.2f}"
    table.add_row("together", mean, "100.0%", "mean length of a step", style="bold")
    return table


def _ranks(report: Report) -> RenderableType:
    by_stage = len(report.ranks) > _MANY_RANKS
    lost = [each for each in report.classes if each not in USEFUL and report.classes[each]]
    most = sorted(lost, key=lambda each: -report.classes[each])[:5]
    shown = [each for each in lost if each in most]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for name in ("stage", "ranks" if by_stage else "rank", "useful", *(SHORT[each] for each in shown)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("in flight", "peak MiB"):
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    for stage, name, group in _rows(report.ranks, by_stage):
        wall = sum(rank.wall_ns for rank in group)
        shares = [sum(rank.useful_ns for rank in group) / wall]
        shares += [sum(rank.classes[each] for rank in group) / wall for each in shown]
        cells = [f"{100 * share:.1f}" for share in shares]
        flight = max(rank.peak_in_flight for rank in group)
        table.add_row(
            str(stage), name, *cells, str(flight), mib(max(rank.peak_bytes for rank in group))
        )  # fmt: skip
    return Group("% of each stage's time, ranks together" if by_stage else "% of each rank's time", table)


def _rows(ranks: Sequence[RankReport], by_stage: bool) -> list[tuple[int, str, list[RankReport]]]:
    ordered = sorted(ranks, key=lambda rank: (rank.stage, rank.rank))
    if not by_stage:
        return [(rank.stage, str(rank.rank), [rank]) for rank in ordered]
    groups: dict[int, list[RankReport]] = {}
    for rank in ordered:
        groups.setdefault(rank.stage, []).append(rank)
    return [(stage, str(len(group)), group) for stage, group in groups.items()]


def _efficiency(report: Report) -> RenderableType:
    values = report.efficiency
    text = Text("parallel efficiency ")
    text.append(f"{values.parallel:.3f}", style="bold")
    text.append(f" = load balance {values.load_balance:.3f} x communication {values.communication:.3f}\n")
    text.append(f"      communication {values.communication:.3f} = serialization {values.serialization:.3f}")
    text.append(f" x transfer {values.transfer:.3f}\n")
    text.append(f"      runtime per dispatched task {report.dispatch_overhead_ns_per_task / 1e3:.1f} µs", style="dim")
    return Padding(text, (0, 0, 1, 0))


def _path(report: Report) -> RenderableType:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what")
    table.add_column("times", justify="right", no_wrap=True)
    table.add_column("a task takes", no_wrap=True)
    for each in report.culprits:
        what = f"{each.kind.replace('_', ' ')} on rank {each.rank}"
        if each.peer >= 0:
            what = f"{each.kind.replace('_', ' ')} from rank {each.peer} to rank {each.rank}"
        elif each.stage != each.rank:
            what += f" (stage {each.stage})"
        ratio = f"{each.ratio:.2f}x the mean" if each.ratio else ""
        table.add_row(f"{each.ns / report.wall_ns:.1%}", what, str(each.count), ratio)
    kinds = ", ".join(f"{kind.replace('_', ' ')} {ns / report.wall_ns:.1%}" for kind, ns in _largest(report.path_kinds))
    stages = ", ".join(f"{stage}: {ns / report.wall_ns:.1%}" for stage, ns in _largest(report.path_stages))
    lines = [f"by kind   {kinds}", f"by stage  {stages}"]
    if report.path_edges:
        edges = (f"{_edge(*edge)}: {ns / report.wall_ns:.1%}" for edge, ns in _largest(report.path_edges))
        lines.append(f"by edge   {', '.join(edges)}")
    return Group("critical path: what set the time of the steps", table, Padding(Text("\n".join(lines)), (0, 0, 1, 1)))


def _edge(one: int, two: int) -> str:
    return f"{one}->{two}" if one != two else f"replicas of {one}"


def _largest(sums: "dict[K, int]") -> "list[tuple[K, int]]":
    return sorted(sums.items(), key=lambda item: -item[1])[:_LARGEST]


def _over_time(report: Report) -> RenderableType:
    """Return the efficiencies of the first, ..., last steps, some at a time; nothing where there are few."""
    if report.num_steps < 2 * _PARTS:
        return Group()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    grouped = ["k"] if any(report.step_k) else []
    for name in ("steps", "ms a step", *grouped, "parallel", "balance", "serial.", "transfer"):
        table.add_column(name, justify="right", no_wrap=True)
    times, ranks = report.step_times, len(report.ranks)
    bounds = np.linspace(0, report.num_steps, _PARTS + 1).astype(int)
    for low, high in pairwise(bounds.tolist()):
        useful, most = times.useful[low:high].sum() / ranks, times.most_useful[low:high].sum()
        wall, ideal = times.wall[low:high].sum(), times.ideal[low:high].sum()
        shares = (useful / max(wall, 1), useful / max(most, 1), most / max(ideal, 1), ideal / max(wall, 1))
        steps = f"{report.step_numbers[low]}-{report.step_numbers[high - 1]}"
        groups = sorted(set(report.step_k[low:high]))
        groups_shown = [", ".join(map(str, groups))] if grouped else []
        table.add_row(steps, f"{wall / (high - low) / 1e6:.2f}", *groups_shown, *(f"{share:.3f}" for share in shares))
    return Group("over time", table)


def _decisions(report: Report) -> RenderableType:
    """Return what the run decided about itself: what changed something, or the last words where nothing did."""
    if not report.decisions:
        return Group()
    changes = [each for each in report.decisions if each.changes]
    shown = (changes or list(report.decisions))[-_DECISIONS:]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    title = "what the run decided on the way"
    table.add_column("from step", justify="right", no_wrap=True)
    table.add_column("about", no_wrap=True)
    table.add_column("what and why", overflow="fold")
    for each in shown:
        table.add_row(str(each.step), each.what, Text(each.why))
    left_out = len(report.decisions) - len(shown)
    if not left_out:
        return Group(title, table)
    rest = f"{left_out} more, most of which changed nothing, stand in the log's group decisions and in --json"
    return Group(title, table, Padding(Text(rest, style="dim"), (0, 0, 1, 1)))


def _waits(report: Report) -> RenderableType:
    if not report.longest_waits:
        return Group()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for name in ("ms", "on the way"):
        table.add_column(name, justify="right", min_width=max(map(len, name.split())))
    for name in ("rank", "step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cause", min_width=len("dependency"), overflow="fold")
    for name in ("until", "then ran"):
        table.add_column(name, overflow="fold")
    for wait in report.longest_waits[:_WAITS]:
        until = f"{wait.message} from rank {wait.peer}" if wait.message else wait.collective or "not known"
        moving = f"{wait.transfer_ns / 1e6:.2f}" if wait.message else ""
        cells = (f"{wait.ns / 1e6:.2f}", moving, str(wait.rank), str(wait.step), wait.cause.replace("_", " "))
        table.add_row(*cells, until, wait.task)
    return Group("longest waits, but for warm-up and drain", table)


def gaps(reports: Sequence[Report]) -> list[Text]:
    """Return a line for everything that is missing."""
    lines = []
    for report in reports:
        place = f"{report.run}: " if len(reports) > 1 else ""
        lines += [Text(f"note: {place}{gap}", style="yellow") for gap in report.gaps]
    return [Text(""), *lines] if lines else []


def _worst(report: Report) -> TimeClass | None:
    lost = {each: ns for each, ns in report.classes.items() if each not in USEFUL and ns}
    return max(lost, key=lambda each: lost[each]) if lost else None


def _per_step(report: Report, each: TimeClass) -> str:
    return f"{report.classes[each] / len(report.ranks) / report.num_steps / 1e6:.2f}"


def mib(num_bytes: int) -> str:
    """Return bytes as MiB, short."""
    size = num_bytes / 2**20
    return f"{size:.1f}" if size < 1000 else f"{size:.0f}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms" if ns < 10**10 else f"{ns / 1e9:.2f} s"
