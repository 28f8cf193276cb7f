"""A run for other tools: Chrome-trace JSON for Perfetto, Parquet or CSV tables for data frames."""

from hpcpipe.analyze.export.tables import write_tables
from hpcpipe.analyze.export.trace_events import write_trace

__all__ = ["write_tables", "write_trace"]
