"""Says where the time of a run went, from its event log alone; needs no MPI, no torch and no GPU."""

from hpcpipe.analyze.compare import Comparison, compare
from hpcpipe.analyze.document import comparison_json
from hpcpipe.analyze.frames import frames
from hpcpipe.analyze.gantt import length_ns, plot_gantt
from hpcpipe.analyze.report import render_text
from hpcpipe.analyze.report_comparison import render_side_by_side
from hpcpipe.analyze.results import Report
from hpcpipe.analyze.summary import summarize
from hpcpipe.analyze.windows import AnalysisError

__all__ = [
    "AnalysisError",
    "Comparison",
    "Report",
    "compare",
    "comparison_json",
    "frames",
    "length_ns",
    "plot_gantt",
    "render_side_by_side",
    "render_text",
    "summarize",
]
