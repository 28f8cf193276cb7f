"""Says where the time of a run went, from its event log alone; needs no MPI, no torch and no GPU."""

from hpcpipe.analyze.gantt import plot_gantt
from hpcpipe.analyze.report import render_side_by_side, render_text
from hpcpipe.analyze.summary import Report, summarize
from hpcpipe.analyze.windows import AnalysisError

__all__ = ["AnalysisError", "Report", "plot_gantt", "render_side_by_side", "render_text", "summarize"]
