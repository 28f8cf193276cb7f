"""The report for people: one sentence, then tables of classes, ranks, efficiencies and the critical path (rich).

It shows the numbers of summary.py and computes none but shares.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcpipe.analyze.summary import RankReport, Report
from hpcpipe.analyze.words import MEANING, NAME, SHORT
from hpcpipe.plan import USEFUL, TimeClass

_MANY_RANKS = 32
_CULPRITS = 6


def render_text(report: Report) -> RenderableType:
    """Return the report of one run."""
    parts: list[RenderableType] = [_head(report), _sentence(report), _classes((report,)), _ranks(report)]
    parts += [_efficiency(report), _path(report), *_gaps((report,))]
    return Group(*parts)


def render_side_by_side(reports: Sequence[Report]) -> RenderableType:
    """Return the classes of several runs in one table, a column a run."""
    return Group(_classes(reports), *_gaps(reports))


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
    return Padding(text, (1, 0))


def _classes(reports: Sequence[Report]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("where the time went", no_wrap=True)
    single = len(reports) == 1
    for report in reports:
        table.add_column("ms a step" if single else _column_name(report, reports), justify="right", overflow="fold")
        if single:
            table.add_column("share", justify="right", no_wrap=True)
            table.add_column("which means", style="dim")
    shown = [each for each in reports[0].classes if any(report.classes[each] for report in reports)]
    for each in shown:
        style = "" if each in USEFUL else "bold" if single and each is _worst(reports[0]) else ""
        cells = [_per_step(report, each) for report in reports]
        if single:
            share = reports[0].classes[each] / sum(reports[0].classes.values())
            cells += [f"{share:.1%}", MEANING[each]]
        else:
            cells = [
                f"{cell}  {report.classes[each] / sum(report.classes.values()):6.1%}"
                for cell, report in zip(cells, reports, strict=True)
            ]
        table.add_row(NAME[each], *cells, style=style)
    table.add_section()
    if single:
        table.add_row("together", f"{_mean_step(reports[0]):.2f}", "100.0%", "mean length of a step", style="bold")
        return table
    rows = {
        "step, mean ms": [f"{_mean_step(report):.2f}" for report in reports],
        "step, median ms": [f"{report.step_ns.median / 1e6:.2f}" for report in reports],
        "speed, to the first": [f"{reports[0].step_ns.median / report.step_ns.median:.3f}x" for report in reports],
        "bubble": [f"{report.bubble_ratio:.1%}" for report in reports],
        "peak in flight": [str(max(rank.peak_in_flight for rank in report.ranks)) for report in reports],
        "peak MiB": [_mib(max(rank.peak_bytes for rank in report.ranks)) for report in reports],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells, style="bold")
    return table


def _ranks(report: Report) -> Table:
    by_stage = len(report.ranks) > _MANY_RANKS
    lost = [each for each in report.classes if each not in USEFUL and report.classes[each]]
    most = sorted(lost, key=lambda each: -report.classes[each])[:5]
    shown = [each for each in lost if each in most]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1), title_justify="left", title_style="")
    table.title = "% of each stage's time, ranks together" if by_stage else "% of each rank's time"
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
            str(stage), name, *cells, str(flight), _mib(max(rank.peak_bytes for rank in group))
        )  # fmt: skip
    return table


def _rows(ranks: Sequence[RankReport], by_stage: bool) -> list[tuple[int, str, list[RankReport]]]:
    ordered = sorted(ranks, key=lambda rank: (rank.stage, rank.rank))
    if not by_stage:
        return [(rank.stage, str(rank.rank), [rank]) for rank in ordered]
    groups: dict[int, list[RankReport]] = {}
    for rank in ordered:
        groups.setdefault(rank.stage, []).append(rank)
    return [(stage, str(len(group)), group) for stage, group in groups.items()]


def _efficiency(report: Report) -> Text:
    values = report.efficiency
    text = Text("parallel efficiency ")
    text.append(f"{values.parallel:.3f}", style="bold")
    text.append(f" = load balance {values.load_balance:.3f} x communication {values.communication:.3f}\n")
    text.append(f"      communication {values.communication:.3f} = serialization {values.serialization:.3f}")
    text.append(f" x transfer {values.transfer:.3f}\n")
    text.append(f"      runtime per dispatched task {report.dispatch_overhead_ns_per_task / 1e3:.1f} µs", style="dim")
    return text


def _path(report: Report) -> Text:
    sums: dict[tuple[str, int], int] = {}
    for entry in report.critical_path:
        key = (entry.kind, entry.rank)
        sums[key] = sums.get(key, 0) + entry.length
    top = sorted(sums.items(), key=lambda item: -item[1])[:_CULPRITS]
    text = Text("\ncritical path  ")
    parts = [f"{kind} on rank {rank} {ns / report.wall_ns:.1%}" for (kind, rank), ns in top]
    text.append(", ".join(parts) + (" and others" if len(sums) > len(top) else ""))
    return text


def _gaps(reports: Sequence[Report]) -> list[Text]:
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


def _mean_step(report: Report) -> float:
    return report.wall_ns / report.num_steps / 1e6


def _column_name(report: Report, reports: Sequence[Report]) -> str:
    names = [each.description.title for each in reports]
    title = report.description.title
    return title if title and names.count(title) == 1 else report.run


def _mib(num_bytes: int) -> str:
    mib = num_bytes / 2**20
    return f"{mib:.1f}" if mib < 1000 else f"{mib:.0f}"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms" if ns < 10**10 else f"{ns / 1e9:.2f} s"
