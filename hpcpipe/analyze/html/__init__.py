"""One self-contained page of a run: the zoomable Gantt, all other pictures, the report; it loads nothing."""

from hpcpipe.analyze.html.page import write_page

__all__ = ["write_page"]
