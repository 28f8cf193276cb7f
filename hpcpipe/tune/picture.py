"""A picture of a tuning: what each candidate holds and how long its steps take, predicted and measured."""

from pathlib import Path
from typing import Any

from hpcpipe.tune.offline import Tuning

SUFFIXES = (".png", ".svg")
BLUE, VERMILION = "#0072B2", "#D55E00"
"""Of Okabe and Ito, safe for the colour-blind."""


def draw(tuning: Tuning, path: Path, *, title: str, limit: int | None = None) -> None:
    """Draw the candidates into a .png or .svg file.

    Raises
    ------
    ValueError
        Another suffix.
    OSError
        The file cannot be written.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path}: cannot draw a {path.suffix or 'file without suffix'}; use {' or '.join(SUFFIXES)}")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.size": 9,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        unit, name = _unit(max(max(line.candidate.peak_bytes) for line in tuning.lines))
        held = [max(line.candidate.peak_bytes) / unit for line in tuning.lines]
        for line, x in zip(tuning.lines, held, strict=True):
            if line.predicted_ns is not None and line.measured_ns is not None:
                axes.plot([x, x], [line.predicted_ns * 1e-6, line.measured_ns * 1e-6], color="#bbbbbb", linewidth=1)
        predicted = [(x, line.predicted_ns) for x, line in zip(held, tuning.lines, strict=True)]
        points = [(x, ns * 1e-6) for x, ns in predicted if ns is not None]
        axes.plot(*zip(*points, strict=True), "o", color=BLUE, markerfacecolor="white", label="predicted")
        measured = [(x, line) for x, line in zip(held, tuning.lines, strict=True) if line.measured_ns is not None]
        points = [(x, (line.measured_ns or 0.0) * 1e-6) for x, line in measured]
        axes.plot(*zip(*points, strict=True), "o", color=BLUE, label="measured")
        for (x, line), (_, y) in zip(measured, points, strict=True):
            grouping = line.candidate.grouping
            best = grouping == tuning.best
            words = f"k={grouping.k} b={grouping.microbatch_size}"
            color, weight = (VERMILION, "bold") if best else ("black", "normal")
            axes.annotate(
                words, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, color=color, fontweight=weight
            )
            if best:
                axes.plot([x], [y], "o", markersize=12, markerfacecolor="none", markeredgecolor=VERMILION, label="best")
        if limit is not None:
            axes.axvline(limit / unit, color="black", linestyle="--", linewidth=1, label="memory limit")
        axes.set(xlabel=f"{name} that the fullest rank holds", ylabel="ms a step", title=title)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.legend(frameon=False, loc="best")
        kind = path.suffix.lower()[1:]
        figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {})


def _unit(most: float) -> tuple[int, str]:
    for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if most >= size:
            return size, name
    return 1, "bytes"
