"""The pictures beside the Gantt, each a function from what was measured to a matplotlib figure; none reads a log.

Colours are the Gantt's for kinds and classes and pale to dark blue for amounts: both safe for the colour-blind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcpipe.analyze.decided import GROUPING, decisions_of
from hpcpipe.analyze.palette import COLLECTIVES, TASKS, USEFUL_LOOKS, WAITS, Look
from hpcpipe.analyze.pictures.measures import MOMENTS, Measures, Spread, edges
from hpcpipe.analyze.results import RankReport, Report
from hpcpipe.events import RunLog
from hpcpipe.plan import TimeClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AMOUNTS = "Blues"
_EMPTY = "#F0F0F0"
_LABELS = 40
_ROW_INCHES = 0.3
_MOST_INCHES = 10.0
_NAMED_DECISIONS = 8
_GREY = "#444444"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a picture is of: the log, its report, its measures, and the title of all its pictures.

    `headed`: whether pictures carry their headline and the title themselves.
    """

    run: RunLog
    report: Report
    measures: Measures
    title: str
    headed: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """A kind of picture: what it shows in a line, and what draws it."""

    name: str
    headline: str
    draw: Callable[[Subject], "Figure"]


def _figure(subject: Subject, headline: str, height: float, width: float = 11.0) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    if subject.headed:
        figure.suptitle(f"{headline}\n{subject.title}", x=0.01, ha="left", fontsize=10)
    return figure


def _rows_high(rows: int) -> float:
    return min(max(rows, 2) * _ROW_INCHES, _MOST_INCHES)


def _label_rows(axes: "Axes", labels: Sequence[str]) -> None:
    every = -(-len(labels) // _LABELS)
    axes.set_yticks(range(0, len(labels), every), labels[::every])
    axes.tick_params(axis="y", length=0)


def draw_classes(subject: Subject) -> "Figure":
    """Draw where the time of each stage went, as shares of the wall time that sum to one."""
    from matplotlib.patches import Patch

    stages: dict[int, list[RankReport]] = {}
    for rank in subject.report.ranks:
        stages.setdefault(rank.stage, []).append(rank)
    order = sorted(stages)
    figure = _figure(subject, HEADLINES["classes"], 1.7 + _rows_high(len(order)))
    axes = figure.add_subplot()
    left = np.zeros(len(order))
    shown: list[Look] = []
    for time_class in TimeClass:
        look = USEFUL_LOOKS.get(time_class) or WAITS.get(time_class)
        if look is None:
            continue
        ns = np.array([sum(rank.classes[time_class] for rank in stages[stage]) for stage in order], dtype=float)
        wall = np.array([sum(rank.wall_ns for rank in stages[stage]) for stage in order], dtype=float)
        if not ns.any():
            continue
        bars = axes.barh(
            range(len(order)), 100 * ns / wall, left=left, height=0.86, color=look.color, edgecolor=look.edge,
            hatch=look.hatch, linewidth=look.line,
        )  # fmt: skip
        for bar, stage in zip(bars, order, strict=True):
            bar.set_gid(f"class-{time_class.name.lower()}-{stage}")
        left += 100 * ns / wall
        shown.append(look)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_xlabel("% of the stage's time")
    _label_rows(axes, [f"stage {stage}" for stage in order])
    handles = [
        Patch(facecolor=look.color, edgecolor=look.edge, hatch=look.hatch, linewidth=0.5, label=look.name)
        for look in shown
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False, fontsize=8)
    return figure


def draw_steps(subject: Subject) -> "Figure":
    """Draw how long each step took and how much of it was useful, with what was decided on the way."""
    report, times = subject.report, subject.report.step_times
    figure = _figure(subject, HEADLINES["steps"], 4.2)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    steps, length = report.step_numbers, times.wall / 1e6
    marker = "o" if len(steps) <= 60 else None
    above.axhspan(report.step_ns.p10 / 1e6, report.step_ns.p90 / 1e6, color="#E8EEF4", zorder=0)
    above.plot(steps, length, color=TASKS_BLUE, linewidth=1.1, marker=marker, markersize=3, gid="step-times")
    above.axhline(report.step_ns.median / 1e6, color=_GREY, linewidth=0.8, linestyle=":")
    above.set_ylabel("ms a step")
    above.set_ylim(0, 1.12 * float(length.max(initial=1e-6)))
    useful = 100 * times.useful / np.maximum(times.wall * len(report.ranks), 1)
    below.plot(steps, useful, color="#009E73", linewidth=1.1, marker=marker, markersize=3, gid="useful-shares")
    below.set_ylim(0, 100)
    below.set_ylabel("% useful")
    below.set_xlabel("step")
    _mark_decisions(above, subject, int(steps[0]), int(steps[-1]))
    if len(steps) == 1:
        below.set_xticks([int(steps[0])])
    below.xaxis.get_major_locator().set_params(integer=True) if len(steps) > 1 else None
    return figure


def _mark_decisions(axes: "Axes", subject: Subject, first: int, last: int) -> None:
    named, k_of = 0, dict(zip(subject.report.step_numbers.tolist(), subject.report.step_k, strict=True))
    for decided in decisions_of(subject.run.ranks[0], first, last):
        if not decided.changes or decided.step == 0:  # nothing was otherwise before
            continue
        step, text = decided.step, decided.what
        if text == GROUPING:
            text = f"k = {k_of[step]}" if step in k_of else decided.why.partition(":")[0]
        axes.axvline(step, color="#D55E00", linewidth=1.0, linestyle="--", gid=f"decision-{step}")
        if named < _NAMED_DECISIONS:
            axes.annotate(
                text, (step, 1), xytext=(3, -9 - 10 * (named % 3)), textcoords="offset points",
                xycoords=("data", "axes fraction"), fontsize=7.5, color="#8A3B00",
            )  # fmt: skip
        named += 1


def draw_latency(subject: Subject) -> "Figure":
    """Draw how the latencies of each edge's messages are spread: a row an edge, dark where most of them are."""
    stage_of = {rank.rank: rank.stage for rank in subject.report.ranks}
    found = subject.measures.latencies
    sides = [
        ("to the next stage: activations", [edge for edge in sorted(found) if _stage(stage_of, edge) > 0]),
        ("to the stage before: gradients", [edge for edge in sorted(found) if _stage(stage_of, edge) <= 0]),
    ]
    sides = [side for side in sides if side[1]]
    most = max((len(edges_of) for _, edges_of in sides), default=1)
    figure = _figure(subject, HEADLINES["latency"], 1.6 + _rows_high(most))
    if not sides:
        return _nothing(figure, "no messages with the time of their sending in these steps")
    low, high = _range([found[edge] for _, of in sides for edge in of])
    tables = [np.array([found[e].counts[low : high + 1] / max(found[e].num, 1) for e in of]) for _, of in sides]
    top = max(float(table.max()) for table in tables)
    mesh: Any = None
    for axes, (name, of), table in zip(np.atleast_1d(figure.subplots(1, len(sides))), sides, tables, strict=True):
        x = _bounds()[low : high + 2] / 1e3
        mesh = axes.pcolormesh(
            x, np.arange(len(of) + 1) - 0.5, np.where(table > 0, table, np.nan), cmap=AMOUNTS, vmin=0, vmax=top,
            shading="flat", rasterized=True,
        )  # fmt: skip
        mesh.set_gid(f"latency-{name.split()[2]}")
        axes.plot(
            [found[edge].quantile(0.5) / 1e3 for edge in of], range(len(of)), "o", color="#D55E00", markersize=3.2,
            markeredgecolor="white", markeredgewidth=0.5, label="median", linestyle="none",
        )  # fmt: skip
        axes.set_facecolor(_EMPTY)
        _logarithmic(axes)
        axes.set_ylim(len(of) - 0.5, -0.5)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel("µs from enqueued to noticed")
        _label_rows(axes, [f"{one}→{two}" for one, two in of])
        axes.legend(loc="upper right", fontsize=7.5, frameon=True, framealpha=0.9)
    figure.colorbar(mesh, ax=figure.axes, label="share of the edge's messages", shrink=0.8)
    return figure


def _logarithmic(axes: "Axes") -> None:
    """Make the x axis logarithmic with plain numbers."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}" if high < 8 * low else "")


def _stage(stage_of: dict[int, int], edge: tuple[int, int]) -> int:
    """Return the direction of an edge: 1 to a later stage, -1 to an earlier one; last to first counts as forward."""
    one, two = (stage_of.get(rank, rank) for rank in edge)
    last = max(stage_of.values(), default=0)
    if last > 1 and {one, two} == {0, last}:
        return 1 if one == last else -1
    return two - one


def _range(spreads: Sequence[Spread]) -> tuple[int, int]:
    filled = np.flatnonzero(np.sum([spread.counts for spread in spreads], axis=0))
    return max(int(filled[0]) - 1, 0), int(filled[-1]) + 1


def _bounds() -> Any:
    inner = edges()
    step = inner[1] / inner[0]
    return np.concatenate([[inner[0] / step], inner, [inner[-1] * step, inner[-1] * step**2]])


def draw_ready(subject: Subject) -> "Figure":
    """Draw how many tasks a stage could choose from, over time: a row a stage."""
    measures = subject.measures
    mean = measures.ready_mean
    figure = _figure(subject, HEADLINES["ready"], 1.5 + _rows_high(len(mean)))
    if not measures.ready_num.any():
        return _nothing(figure, "no choices in these steps")
    axes = figure.add_subplot()
    windows = measures.windows
    x, most = np.linspace(0, windows.wall / 1e6, MOMENTS + 1), max(1.0, float(np.nanmax(mean)))
    mesh = axes.pcolormesh(
        x, np.arange(len(mean) + 1) - 0.5, np.ma.masked_invalid(mean), cmap=AMOUNTS, vmin=0, vmax=most,
        shading="flat", rasterized=True,
    )  # fmt: skip
    axes.set_facecolor(_EMPTY)
    mesh.set_gid("ready-sizes")
    if len(windows) <= 40:
        for edge in windows.edges[1:-1].tolist():
            axes.axvline((edge - windows.begin) / 1e6, color="white", linewidth=1.2)
            axes.axvline((edge - windows.begin) / 1e6, color="#222222", linewidth=0.6)
    axes.set_ylim(len(mean) - 0.5, -0.5)
    axes.set_xlabel("ms")
    _label_rows(axes, [f"stage {stage}" for stage in range(len(mean))])
    figure.colorbar(mesh, ax=axes, label="tasks ready when one was chosen", shrink=0.8)
    return figure


def draw_durations(subject: Subject) -> "Figure":
    """Draw how long the tasks of each kind took."""
    found = subject.measures.durations
    kinds = [kind for kind in (*TASKS, *COLLECTIVES) if kind in found]
    figure = _figure(subject, HEADLINES["durations"], 1.0 + 1.25 * max(len(kinds), 1))
    if not kinds:
        return _nothing(figure, "no tasks in these steps")
    low, high = _range([found[kind] for kind in kinds])
    bounds = _bounds()[low : high + 2] / 1e6
    for axes, kind in zip(np.atleast_1d(figure.subplots(len(kinds), 1, sharex=True)), kinds, strict=True):
        look, spread = {**TASKS, **COLLECTIVES}[kind], found[kind]
        counts = spread.counts[low : high + 1]
        bars = axes.bar(
            bounds[:-1], counts, width=np.diff(bounds), align="edge", color=look.color, edgecolor="white",
            linewidth=0.3,
        )  # fmt: skip
        for bar, count, (a, _) in zip(bars, counts.tolist(), pairwise(bounds.tolist()), strict=True):
            if count:
                bar.set_gid(f"duration-{kind.name}-{a:.6f}")
        _logarithmic(axes)
        mean = spread.total / max(spread.num, 1) / 1e6
        said = f"{spread.num:,} tasks · mean {mean:.3g} ms · p99 {spread.quantile(0.99) / 1e6:.3g} ms"
        axes.set_title(f"{look.name}   {said}", fontsize=8.5, loc="left")
        axes.set_ylabel("tasks", fontsize=8)
    figure.axes[-1].set_xlabel("ms, logarithmic; the height counts tasks")
    return figure


def _nothing(figure: "Figure", why: str) -> "Figure":
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", color=_GREY)
    return figure


HEADLINES = {
    "classes": "Where the time of each stage went",
    "steps": "How long the steps took, and what was decided",
    "latency": "How long messages took, edge by edge",
    "ready": "How many tasks were ready when one was chosen",
    "durations": "How long tasks took",
}
TASKS_BLUE = "#0072B2"

_DRAWN = {
    "classes": draw_classes,
    "steps": draw_steps,
    "latency": draw_latency,
    "ready": draw_ready,
    "durations": draw_durations,
}
CHARTS = {name: Chart(name, HEADLINES[name], draw) for name, draw in _DRAWN.items()}
