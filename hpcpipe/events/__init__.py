"""The event log: what every rank did and when, in one HDF5 file a rank, written as it happens and merged when read."""

from hpcpipe.events.header import LogHeader
from hpcpipe.events.opening import LogError
from hpcpipe.events.reader import RankLog, RunLog, open_rank, open_run
from hpcpipe.events.rows import MemoryRows, StoredRows, held_open
from hpcpipe.events.schema import FLAG_BACKWARD, FLAG_RECOMPUTED, FLAG_REPLAYED
from hpcpipe.events.tables import Events, Steps
from hpcpipe.events.writer import EventWriter

__all__ = [
    "FLAG_BACKWARD",
    "FLAG_RECOMPUTED",
    "FLAG_REPLAYED",
    "EventWriter",
    "Events",
    "LogError",
    "LogHeader",
    "MemoryRows",
    "RankLog",
    "RunLog",
    "Steps",
    "StoredRows",
    "held_open",
    "open_rank",
    "open_run",
]
