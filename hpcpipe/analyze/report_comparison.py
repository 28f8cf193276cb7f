"""Several runs for people: sentences that say whether they differ, and a table with a column a run.

It shows the numbers of results.py and compare.py.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcpipe.analyze.compare import LEAST_STEPS, Comparison, Difference
from hpcpipe.analyze.report import gaps, mib
from hpcpipe.analyze.results import Report
from hpcpipe.analyze.words import NAME
from hpcpipe.plan import USEFUL


def render_side_by_side(reports: Sequence[Report], comparisons: Sequence[Comparison]) -> RenderableType:
    """Return the comparison of several runs; each after the first is compared with it."""
    names = _names(reports)
    parts: list[RenderableType] = []
    for i, comparison in enumerate(comparisons, start=1):
        parts += [Padding(sentences(comparison, names[0], names[i]), (1 if i > 1 else 0, 0, 0, 0))]
    parts += [_table(reports, comparisons, names), *_letters(reports, names), *gaps(reports)]
    return Group(*parts)


def sentences(comparison: Comparison, first: str, second: str) -> Text:
    """Say how the second run compares with the first, and how that is known."""
    text = Text()
    relative, step = comparison.relative, comparison.step
    if relative is None or step is None:
        text.append(f"{second} against {first}: too few steps to tell a difference from the noise", style="bold")
        text.append(f" ({comparison.num_steps[0]} and {comparison.num_steps[1]}; {LEAST_STEPS} are needed).")
        return text
    interval = f"95 % interval {relative.low:+.1%} to {relative.high:+.1%}"
    if relative.certain:
        word = "shorter" if relative.mean < 0 else "longer"
        text.append(f"A step of {second} is {abs(relative.mean):.1%} {word} than one of {first}", style="bold")
        text.append(f" ({interval}): larger than the noise.")
    else:
        text.append(f"No difference between {second} and {first} beyond the noise", style="bold")
        text.append(f": {relative.mean:+.1%} ({interval}).")
    certain = {each: value for each, value in comparison.classes.items() if value.certain}
    if certain:
        most = sorted(certain, key=lambda each: -abs(certain[each].mean))[:3]
        changes = ", ".join(f"{NAME[each]} {certain[each].mean / 1e6:+.2f} ms" for each in most)
        text.append(f" What differs most, a step on a rank: {changes}.")
    text.append(f" {_method(comparison)}", style="dim")
    return text


def _method(comparison: Comparison) -> str:
    one, two = comparison.num_steps
    if comparison.paired:
        words = [f"The same {one} steps of both are compared in pairs."]
    else:
        words = [f"{one} steps are compared with {two}."]
    if any(comparison.warmup):
        one, two = comparison.warmup
        words.append(f"The first steps, {one} and {two}, are left out: longer than usual (warm-up).")
    if not comparison.same_tokens:
        words.append("Their steps hold different numbers of tokens: compare tokens/s.")
    return " ".join(words)


def _table(reports: Sequence[Report], comparisons: Sequence[Comparison], names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("ms a step, mean of ranks", overflow="fold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for i in range(1, len(reports)):
        table.add_column(f"{names[i]} - {names[0]}", justify="right", overflow="fold")
    shown = [each for each in reports[0].classes if any(report.classes[each] for report in reports)]
    for each in shown:
        cells = [f"{report.classes[each] / len(report.ranks) / report.num_steps / 1e6:.2f}" for report in reports]
        cells += [_difference(comparison.classes.get(each)) for comparison in comparisons]
        table.add_row(NAME[each], *cells, style="" if each in USEFUL else "bold" if _certain(comparisons, each) else "")
    table.add_section()
    steps = [f"{report.wall_ns / report.num_steps / 1e6:.2f}" for report in reports]
    table.add_row("step, mean", *steps, *(_difference(comparison.step) for comparison in comparisons), style="bold")
    rates = [report.throughput.tokens_per_s for report in reports]
    rows = {
        "step, median": [f"{report.step_ns.median / 1e6:.2f}" for report in reports],
        "speed, to the first": [f"{reports[0].step_ns.median / report.step_ns.median:.3f}x" for report in reports],
        "tokens/s": [f"{rate:,.0f}" if rate else "" for rate in rates] if any(rates) else [],
        "bubble": [f"{report.bubble_ratio:.1%}" for report in reports],
        "parallel efficiency": [f"{report.efficiency.parallel:.3f}" for report in reports],
        "peak in flight": [str(max(rank.peak_in_flight for rank in report.ranks)) for report in reports],
        "peak MiB": [mib(max(rank.peak_bytes for rank in report.ranks)) for report in reports],
    }
    for name, cells in rows.items():
        if cells:  # emulated devices have no tokens
            table.add_row(name, *cells)
    return table


def _difference(value: Difference | None) -> str:
    """Return the middle of an interval and half its length; a star where it does not hold 0."""
    if value is None:
        return ""
    return f"{value.mean / 1e6:+.2f} ± {(value.high - value.low) / 2e6:.2f}{'*' if value.certain else ' '}"


def _certain(comparisons: Sequence[Comparison], each: object) -> bool:
    return any(
        value.certain for comparison in comparisons for name, value in comparison.classes.items() if name is each
    )


def _names(reports: Sequence[Report]) -> list[str]:
    return [chr(ord("A") + i) if i < 26 else f"run {i + 1}" for i in range(len(reports))]


def _letters(reports: Sequence[Report], names: Sequence[str]) -> list[Text]:
    lines = [Text("* larger than the noise (95 %, all classes together)", style="dim")]
    for name, report in zip(names, reports, strict=True):
        title = report.description.title
        lines.append(Text(f"{name}  {title + ', ' if title else ''}{report.run}"))
    return lines
