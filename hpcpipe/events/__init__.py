"""The event log: what every rank did and when, in an HDF5 file a rank or a node, merged when read."""

from hpcpipe.events.causality import Causality, causality
from hpcpipe.events.clock import ClockFit
from hpcpipe.events.header import LogHeader
from hpcpipe.events.opening import LogError
from hpcpipe.events.reader import RankLog, RunLog, open_rank, open_run
from hpcpipe.events.ring import ring_bytes
from hpcpipe.events.rows import MemoryRows, StoredRows, held_open
from hpcpipe.events.tables import Events, Steps
from hpcpipe.events.writer import EventWriter

__all__ = [
    "Causality",
    "ClockFit",
    "EventWriter",
    "Events",
    "LogError",
    "LogHeader",
    "MemoryRows",
    "RankLog",
    "RunLog",
    "Steps",
    "StoredRows",
    "causality",
    "held_open",
    "open_rank",
    "open_run",
    "ring_bytes",
]
