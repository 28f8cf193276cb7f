"""The event log: what every rank did and when, in one HDF5 file a rank, written as it happens and merged when read."""

from hpcpipe.events.header import LogHeader
from hpcpipe.events.writer import EventWriter

__all__ = ["EventWriter", "LogHeader"]
