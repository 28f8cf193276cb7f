"""What all pictures of a run share: whether they can be drawn here, their files, and the settings of matplotlib.

matplotlib is large, and a run needs none of it, so it is imported when something is drawn.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.analyze.windows import AnalysisError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "pictures need matplotlib, which is not installed: pip install 'hpcpipe[plots]'"
_SUFFIXES = (".png", ".svg")
_SETTINGS = {
    "font.family": "sans-serif",
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def can_draw() -> bool:
    """Return whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def check_picture(path: Path) -> None:
    """Raise AnalysisError unless a picture can be drawn here, and the file's name says that it is PNG or SVG."""
    if path.suffix.lower() not in _SUFFIXES:
        raise AnalysisError(
            f"{path}: cannot draw a {path.suffix or 'file without suffix'}; use {' or '.join(_SUFFIXES)}"
        )
    _require_matplotlib()


def _require_matplotlib() -> None:
    if not can_draw():
        raise AnalysisError(MISSING)


@contextmanager
def drawing(salt: str, more: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Draw with the settings of all pictures, and some more; of one salt an SVG has the same text every time.

    Raises
    ------
    AnalysisError
        matplotlib is not installed.
    """
    _require_matplotlib()
    import matplotlib as mpl

    settings: dict[Any, Any] = {**_SETTINGS, "svg.hashsalt": salt, **(more or {})}
    with mpl.rc_context(settings):
        yield


def save(figure: "Figure", target: Any, kind: str) -> None:
    """Write a figure, as "png" or "svg", into a file or a buffer."""
    figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else {})
