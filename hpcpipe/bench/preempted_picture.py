"""Draws how long steps took while the network changed, and which k they had. It measures nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.drawing import drawing, save
from hpcpipe.analyze.palette import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from hpcpipe.bench.preempted_runs import Trace
from hpcpipe.bench.preempted_verdict import ADAPTIVE, ADAPTIVE_READY, BASE
from hpcpipe.bench.tenant import Phase, bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {BASE: BLACK, "fixed 2F2B": SKY, "fixed 4F4B": BLUE, ADAPTIVE: VERMILION, ADAPTIVE_READY: GREEN}
_OTHERS = (ORANGE, PURPLE)
_WINDOW = 5
"""Steps whose median is drawn, so that single late ones do not hide the course."""


def draw(path: Path, traces: Mapping[tuple[str, str], Trace], phases: Sequence[Phase]) -> None:
    """Draw all models beside each other: step times above, k and b below, over the seconds of the phases."""
    models = list(dict.fromkeys(model for model, _ in traces))
    with drawing("preempted"):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1.5 + 6.5 * len(models), 6.2), layout="constrained")
        axes = figure.subplots(3, len(models), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 1, 1))
        for column, model in zip(axes.T, models, strict=True):
            _shade(column, phases)
            others = iter(_OTHERS)
            for (of, system), trace in traces.items():
                if of == model:
                    color = _COLORS.get(system) or next(others)
                    _draw_one(column, system, color, trace)
            column[0].set_title(model, loc="left", fontsize=10, pad=18)
            column[-1].set_xlabel("seconds")
        axes[0, 0].set_ylabel(f"step, ms (median of {_WINDOW})")
        axes[0, 0].set_ylim(bottom=600 * min(float(np.median(np.diff(trace.begins))) for trace in traces.values()))
        _mark(axes[1, 0], "k", [trace.k for trace in traces.values()])
        _mark(axes[2, 0], "b", [trace.microbatch_size for trace in traces.values()])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        save(figure, path, path.suffix.lower().removeprefix("."))


def _shade(axes: "Sequence[Axes]", phases: Sequence[Phase]) -> None:
    most = max((phase.busy for phase in phases), default=0.0) or 1.0
    for phase, (begin, end) in zip(phases, bounds(phases), strict=True):
        for each in axes:
            each.axvspan(begin, end, color=ORANGE, alpha=0.28 * phase.busy / most, linewidth=0)
            each.set_xlim(0, end)
        axes[0].annotate(phase.name, ((begin + end) / 2, 1.02), xycoords=("data", "axes fraction"), ha="center")


def _mark(axes: "Axes", name: str, values: Sequence[NDArray[np.int64]]) -> None:
    """Let an axis of powers of two show the values that occur."""
    ticks = sorted({max(1, int(value)) for each in values for value in np.unique(each)})
    axes.set_ylabel(name)
    axes.set_yscale("log", base=2)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(min(ticks) / 1.4, max(ticks) * 1.4)


def _draw_one(axes: "Sequence[Axes]", system: str, color: str, trace: Trace) -> None:
    begins, ms = trace.begins[:-1], np.diff(trace.begins) * 1e3
    chosen = system in (ADAPTIVE, ADAPTIVE_READY)
    axes[0].plot(begins, smooth(ms), color=color, label=system, linewidth=1.6 if chosen else 1.0)
    if chosen:
        style = "-" if system == ADAPTIVE else "--"
        for each, values in zip(axes[1:], (trace.k, trace.microbatch_size), strict=True):
            each.step(begins, values, where="post", color=color, linewidth=1.6, linestyle=style)


def smooth(values: NDArray[np.float64], window: int = _WINDOW) -> NDArray[np.float64]:
    """Return the running median; at the ends over what there is."""
    half = window // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])
