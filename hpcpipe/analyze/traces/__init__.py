"""Runs of other pipeline frameworks, read from the Chrome traces that torch.profiler writes, one file a rank."""

from hpcpipe.analyze.traces.opening import import_traces, open_log

__all__ = ["import_traces", "open_log"]
