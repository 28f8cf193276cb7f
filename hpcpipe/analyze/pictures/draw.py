"""Draws a picture by its name into a PNG or SVG file, or an SVG text for a page; what it looks like is charts.py's."""

from io import BytesIO
from pathlib import Path

from hpcpipe.analyze.drawing import check_picture, drawing, save
from hpcpipe.analyze.gantt import plot_gantt
from hpcpipe.analyze.pictures.charts import CHARTS, Subject
from hpcpipe.analyze.windows import StepChoice
from hpcpipe.events import RunLog

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
    check_picture(path)
    with drawing(f"hpcpipe-{name}"):
        save(CHARTS[name].draw(subject), path, path.suffix.lower()[1:])


def to_svg(name: str, subject: Subject) -> str:
    """Return a chart as an SVG element to stand in a page."""
    buffer = BytesIO()
    with drawing(f"hpcpipe-{name}"):
        save(CHARTS[name].draw(subject), buffer, "svg")
    text = buffer.getvalue().decode()
    return text[text.index("<svg") :]
