"""Whether pictures can be drawn here: matplotlib is large, and a run needs none of it. It draws nothing itself."""

from importlib.util import find_spec

from hpcpipe.analyze.windows import AnalysisError

MISSING = "pictures need matplotlib, which is not installed: pip install 'hpcpipe[plots]'"


def can_draw() -> bool:
    """Return whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def require_drawing() -> None:
    """Raise AnalysisError, with the way out, where pictures cannot be drawn."""
    if not can_draw():
        raise AnalysisError(MISSING)
