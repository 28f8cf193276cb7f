"""A picture of a tuning: how long each candidate's steps take, predicted and measured, beside what it holds."""

from pathlib import Path
from typing import Any

from hpcpipe.tune.offline import Line, Tuning

BLUE, SKY, VERMILION, GREY = "#0072B2", "#56B4E9", "#D55E00", "#999999"
"""Of Okabe and Ito, safe for the colour-blind."""

MOST_ROWS = 30
"""Of more candidates, those are drawn that were measured, and the fastest of the others."""


def draw(tuning: Tuning, path: Path, *, title: str, limit: int | None = None) -> None:
    """Draw the candidates into a .png or .svg file, the leanest on top.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _shown(tuning)
    settings: dict[Any, Any] = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "hpcpipe-tune"}
    settings |= {"axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.5, 1.4 + 0.24 * len(lines)), layout="constrained")
        FigureCanvasAgg(figure)
        times, memory = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
        rows = range(len(lines))
        best = next(row for row, line in enumerate(lines) if line.candidate.grouping == tuning.best)
        unit, name = _unit(max(max(line.candidate.peak_bytes) for line in lines))
        held = [max(line.candidate.peak_bytes) / unit for line in lines]
        measured = [(row, line.measured_ns * 1e-6) for row, line in enumerate(lines) if line.measured_ns is not None]
        colors = [VERMILION if row == best else BLUE for row, _ in measured]
        times.barh([row for row, _ in measured], [ms for _, ms in measured], height=0.6, color=colors, label="measured")
        predicted = [(row, line.predicted_ns * 1e-6) for row, line in enumerate(lines) if line.predicted_ns is not None]
        times.plot([ms for _, ms in predicted], [row for row, _ in predicted], "d", color="black", markersize=4)
        memory.barh(list(rows), held, height=0.6, color=[VERMILION if row == best else GREY for row in rows])
        if limit is not None and limit / unit < 3 * max(held):
            memory.axvline(limit / unit, color="black", linestyle="--", linewidth=1)
            memory.set_title("dashed: the limit", fontsize=9)
        times.set_yticks(list(rows), [str(line.candidate.grouping) for line in lines])
        times.get_yticklabels()[best].set(color=VERMILION, fontweight="bold")
        times.set(xlabel="ms a step", ylim=(len(lines) - 0.4, -0.6))
        times.set_title("bars: measured, diamonds: predicted", fontsize=9)
        memory.set(xlabel=f"{name} on the fullest rank")
        memory.tick_params(axis="y", length=0)
        figure.suptitle(title)
        kind = path.suffix.lower()[1:]
        figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})


def _shown(tuning: Tuning) -> list[Line]:
    """Return the lines to draw, in their order."""
    by_time = sorted(tuning.lines, key=lambda line: (line.measured_ns is None, line.predicted_ns or 0))
    chosen = {line.candidate.grouping for line in by_time[:MOST_ROWS]}
    return [line for line in tuning.lines if line.candidate.grouping in chosen]


def _unit(most: float) -> tuple[int, str]:
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if most >= size:
            return size, name
    return 1, "bytes"
