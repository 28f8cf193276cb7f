"""The Gantt picture of chosen steps: a row a rank, tasks in colour, waits pale, collectives as thin lines below.

Drawn with matplotlib without a display; the file's suffix says whether it is PNG or SVG.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.describe import title
from hpcpipe.analyze.drawing import check_picture, drawing, save
from hpcpipe.analyze.nodes import RankPart
from hpcpipe.analyze.palette import COLLECTIVES, TASKS, WAITS, Look
from hpcpipe.analyze.rows import Rows
from hpcpipe.analyze.stream import Cursor
from hpcpipe.analyze.windows import Windows, make_windows
from hpcpipe.analyze.words import NAME
from hpcpipe.events import RunLog
from hpcpipe.plan import Kind, TimeClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_BAR, _THICK_BAR = 0.72, 0.84
_LINE = 0.07
_DPI = 160
_NUMBER_POINTS = (7.5, 5.0)
"""Size of the numbers where there is room, and the least that can be read."""
_ROW_INCHES = 0.44
_MOST_INCHES = 18.0
_LABELS = 48
_STEP_LABELS = 16


@dataclass(frozen=True, slots=True)
class _Canvas:
    axes: "Axes"
    begin: int
    fine: bool
    shown: set[str]

    def bars(self, row: float, height: float, start: NDArray[Any], end: NDArray[Any], look: Look) -> None:
        """Draw intervals at once; `shown` collects what the legend must name."""
        keep = end > start
        if not keep.any():
            return
        x = (start[keep] - self.begin) / 1e6
        width = (end[keep] - start[keep]) / 1e6
        self.axes.broken_barh(
            list(zip(x.tolist(), width.tolist(), strict=True)),
            (row - height / 2, height),
            facecolor=look.color,
            edgecolor=look.edge,
            linewidth=0 if self.fine else look.line,
            hatch=look.hatch,
            zorder=look.layer,
        )
        self.shown.add(look.name)


def length_ns(run: RunLog, steps: tuple[int | None, int | None] | None = None) -> int:
    """Return how long the chosen steps are together."""
    return make_windows(run, steps)[0].wall


def plot_gantt(
    run: RunLog, path: Path | str, steps: tuple[int | None, int | None] | None = None, *, axis_ns: int = 0
) -> None:
    """Draw the chosen steps (first and last included; None: all) into a .png or .svg file.

    The time axis is at least `axis_ns` long, for pictures that are compared.

    Raises
    ------
    AnalysisError
        No such step, another suffix, or no matplotlib.
    OSError
        The file cannot be written.
    """
    path = Path(path)
    check_picture(path)
    windows, ranks = make_windows(run, steps)
    with drawing("hpcpipe", {"axes.spines.left": False}):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        height = min(_ROW_INCHES * max(len(ranks), 2), _MOST_INCHES)
        figure = Figure(figsize=(12, 1.7 + height), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(
            figure,
            run,
            [RankPart.of(Cursor(rank, windows), windows) for rank in ranks],
            windows,
            max(windows.wall, axis_ns),
        )
        save(figure, path, path.suffix.lower()[1:])


def _draw(figure: "Figure", run: RunLog, parts: list[RankPart], windows: Windows, axis_ns: int) -> None:
    axes = figure.add_subplot()
    parts = sorted(parts, key=lambda part: (part.log.header.stage, part.log.rank))
    ordered = [part.log for part in parts]
    canvas = _Canvas(axes, windows.begin, len(parts) > _LABELS, set())
    axes.set_xlim(0, axis_ns / 1e6)
    axes.set_ylim(len(ordered) - 0.45, -0.55)
    for row, part in enumerate(parts):
        _draw_rank(canvas, row, part, windows)
    _draw_steps(axes, windows)
    replicated = any(rank.header.stage != rank.rank for rank in ordered)
    labels = [f"stage {r.header.stage}" + (f" · rank {r.rank}" if replicated else "") for r in ordered]
    every = -(-len(ordered) // _LABELS)
    axes.set_yticks(range(0, len(ordered), every), labels[::every])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms")
    shown = title(run, int(windows.steps[0]), int(windows.steps[-1]))
    axes.set_title(shown, loc="left", fontsize=11, pad=20, fontweight="bold")
    _draw_legend(figure, canvas.shown)
    _draw_numbers(figure, axes, parts, windows)


def _draw_rank(canvas: _Canvas, row: int, part: RankPart, windows: Windows) -> None:
    pieces, bar = part.account.pieces, _THICK_BAR if canvas.fine else _BAR
    for time_class, look in WAITS.items():
        chosen = pieces.classes == time_class
        canvas.bars(row, bar, pieces.edges[:-1][chosen], pieces.edges[1:][chosen], look)
    tasks = _tasks_shown(part, windows)
    for kind, look in TASKS.items():
        chosen = tasks.kind == kind
        canvas.bars(row, bar, tasks.t_start[chosen], tasks.t_end[chosen], look)
    for kind, look in COLLECTIVES.items():
        rows = part.rows.take(part.rows.kind == kind)
        start, end = np.clip(rows.t_start, windows.begin, windows.end), np.clip(rows.t_end, windows.begin, windows.end)
        canvas.bars(row + bar / 2 + _LINE, _LINE, start, end, look)


def _tasks_shown(part: RankPart, windows: Windows) -> Rows:
    spans = part.account.busy
    rows = part.rows.take(spans.row)
    start, end = np.clip(spans.start, windows.begin, windows.end), np.clip(spans.end, windows.begin, windows.end)
    rows = replace(rows, t_start=start, t_end=end)
    return rows.take(end > start)


def _draw_steps(axes: "Axes", windows: Windows) -> None:
    every = -(-len(windows) // _STEP_LABELS)
    for i, step in enumerate(windows.steps.tolist()):
        x = (int(windows.edges[i]) - windows.begin) / 1e6
        if i:
            axes.axvline(x, color="#222222", linewidth=1.0 if len(windows) <= _STEP_LABELS else 0.4, zorder=5)
        if len(windows.steps) > 1 and i % every == 0:
            axes.annotate(
                f"step {step}", (x, 1), xytext=(3, 3), textcoords="offset points",
                xycoords=("data", "axes fraction"), fontsize=8, color="#444444",
            )  # fmt: skip


def _draw_legend(figure: "Figure", shown: set[str]) -> None:
    from matplotlib.patches import Patch

    looks = [look for look in (*TASKS.values(), *COLLECTIVES.values(), *WAITS.values()) if look.name in shown]
    handles = [
        Patch(facecolor=look.color, edgecolor=look.edge, hatch=look.hatch, linewidth=0.5, label=look.name)
        for look in looks
    ]
    handles.append(Patch(facecolor="white", edgecolor="#BDBDBD", linewidth=0.5, label=NAME[TimeClass.RUNTIME]))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 10), frameon=False, fontsize=8,
        handlelength=1.4, columnspacing=1.4,
    )  # fmt: skip


def _draw_numbers(figure: "Figure", axes: "Axes", parts: list[RankPart], windows: Windows) -> None:
    """Write micro-batch numbers in the bars that have room for them."""
    figure.draw_without_rendering()
    points_per_ms = axes.get_window_extent().width / figure.dpi * 72 / axes.get_xlim()[1]
    for row, part in enumerate(parts):
        tasks = _tasks_shown(part, windows)
        for kind in (Kind.F, Kind.B, Kind.W):
            look = TASKS[kind]
            chosen = tasks.take(tasks.kind == kind)
            middles = ((chosen.t_start + chosen.t_end) / 2 - windows.begin) / 1e6
            room = (chosen.t_end - chosen.t_start) / 1e6 * points_per_ms
            for x, width, number in zip(middles.tolist(), room.tolist(), chosen.microbatch.tolist(), strict=True):
                most, least = _NUMBER_POINTS
                size = min(most, width / (0.64 * len(str(number)) + 0.2))
                if size >= least:
                    axes.text(
                        x, row, str(number), ha="center", va="center", fontsize=size, color=look.ink, zorder=6,
                    )  # fmt: skip


assert set(WAITS) <= set(TimeClass) and all(each in NAME for each in WAITS)
