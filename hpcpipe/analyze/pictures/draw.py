"""Draws a picture by its name into a PNG or SVG file, or an SVG text for a page; what it looks like is charts.py's."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.analyze.drawing import require_drawing
from hpcpipe.analyze.gantt import SUFFIXES, plot_gantt
from hpcpipe.analyze.pictures.charts import CHARTS, Subject
from hpcpipe.analyze.windows import AnalysisError, StepChoice
from hpcpipe.events import RunLog

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = ("gantt", *CHARTS)


def split_name(text: str) -> tuple[str, Path]:
    """Return the picture and the file of `NAME:FILE`; without a name it is the Gantt."""
    name, colon, file = text.partition(":")
    return (name, Path(file)) if colon and name in PICTURES else ("gantt", Path(text))


def draw_picture(run: RunLog, name: str, path: Path, subject: Subject | None, steps: StepChoice = None) -> None:
    """Draw one of PICTURES into a .png or .svg file; all but the Gantt need the subject.

    Raises
    ------
    AnalysisError
        No such step, another suffix, or no matplotlib.
    OSError
        The file cannot be written.
    """
    if name == "gantt" or subject is None:
        plot_gantt(run, path, steps)
        return
    if path.suffix.lower() not in SUFFIXES:
        raise AnalysisError(
            f"{path}: cannot draw a {path.suffix or 'file without suffix'}; use {' or '.join(SUFFIXES)}"
        )
    with _settings(name):
        _save(CHARTS[name].draw(subject), path, path.suffix.lower()[1:])


def to_svg(name: str, subject: Subject) -> str:
    """Return a chart as an SVG element to stand in a page."""
    buffer = BytesIO()
    with _settings(name):
        _save(CHARTS[name].draw(subject), buffer, "svg")
    text = buffer.getvalue().decode()
    return text[text.index("<svg") :]


def _save(figure: "Figure", target: Any, kind: str) -> None:
    figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else {})


@contextmanager
def _settings(name: str) -> Iterator[None]:
    require_drawing()
    import matplotlib as mpl

    settings: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": 9,
        "hatch.linewidth": 0.5,
        "svg.fonttype": "none",
        "svg.hashsalt": f"hpcpipe-{name}",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(settings):
        yield
