"""The event log's format: every group and column with its type, unit and meaning, in one table.

Writer and reader both follow this table, and so does the documentation; it must not open files or know who uses it.
"""

import struct
from dataclasses import dataclass

import numpy as np

from hpcpipe.plan import Kind, TimeClass

FORMAT = "hpcpipe-events"
SCHEMA_VERSION = "1.1.0"

KINDS = tuple(kind.name for kind in Kind)
WAIT_CLASSES = tuple(time_class.name.lower() for time_class in TimeClass)


@dataclass(frozen=True, slots=True)
class Column:
    """One extendible dataset of one dimension. `names` are the meanings of its numbers, where they are codes."""

    name: str
    dtype: str
    units: str
    description: str
    names: tuple[str, ...] = ()


EVENTS = (
    Column("step", "<i4", "1", "training step, -1 where it does not apply"),
    Column(
        "microbatch", "<i4", "1", "micro-batch in admission order; the bucket of RS, UPDATE, AG; 0 of NORM; else -1"
    ),
    Column("kind", "|u1", "1", "what happened", KINDS),
    Column("chunk", "<i2", "1", "virtual stage on this rank"),
    Column("t_ready", "<i8", "ns", "when it could run; of a message: when it was enqueued, in the sender's clock"),
    Column("t_start", "<i8", "ns", "when it was dispatched; of a message: when the request was posted"),
    Column("t_end", "<i8", "ns", "when the device was done; of a message: when its completion was noticed"),
    Column("wait_class", "|u1", "1", "of WAIT: why nothing ran", WAIT_CLASSES),
    Column("peer", "<i4", "1", "of a message: world rank at its other end; of WAIT: whose message ended it; else -1"),
    Column("bytes", "<i8", "bytes", "size of the message or bucket"),
    Column("rank_in_hint", "<i4", "1", "position of the chosen task in the hint order, -1 where nothing was chosen"),
    Column("ready_count", "<i2", "1", "size of the ready-set that the policy chose from"),
    Column(
        "flags",
        "|u1",
        "1",
        "bit 0: the message is a gradient; bit 1: a forward done again; bit 2: replayed; bit 3: the device's times",
    ),
)

STEPS = (
    Column("step", "<i4", "1", "training step"),
    Column("t_begin", "<i8", "ns", "when this rank began the step"),
    Column("t_end", "<i8", "ns", "when this rank's last task of the step was done"),
    Column("loss", "<f8", "1", "mean loss over the global batch's tokens, NaN where not known"),
    Column("grad_norm", "<f8", "1", "norm of the whole gradient, NaN where not known"),
    Column("tokens", "<i8", "1", "tokens of the global batch"),
    Column("hint", "S64", "1", "hint order of the step"),
    Column("k", "<i4", "1", "micro-batches in a group, 0 where they are not grouped"),
    Column("bucket_bytes", "<i8", "bytes", "size of the fusion buckets together"),
    Column("peak_bytes", "<i8", "bytes", "most memory held during the step"),
)

CLOCK = (
    Column("t_local", "<i8", "ns", "when this rank's clock was compared with rank 0's"),
    Column("offset", "<i8", "ns", "this rank's clock minus rank 0's"),
    Column("round_trip", "<i8", "ns", "length of the comparison; the offset is known to half of it"),
)

DECISIONS = (
    Column("step", "<i4", "1", "first step that it holds for"),
    Column("what", "S64", "1", "what was chosen"),
    Column("why", "S256", "1", "the reason, for people"),
)

GROUPS = {"events": EVENTS, "steps": STEPS, "clock": CLOCK, "decisions": DECISIONS}

RANK = Column("rank", "<i4", "1", "world rank that the row comes from; only in a file of a node")

RANKS = (
    Column("rank", "<i4", "1", "world rank"),
    Column("stage", "<i4", "1", "its pipeline stage"),
    Column("replica", "<i4", "1", "its data-parallel replica"),
    Column("slice", "<i4", "1", "its tensor-parallel slice"),
    Column("device", "S64", "1", "where it computed"),
    Column("closed", "|u1", "1", "1 once the rank has handed over everything and said so"),
    Column("blocked", "<i8", "1", "times the training had to wait for its log because the ring was full"),
    Column("blocked_ns", "<i8", "ns", "how long it waited then"),
    Column("lost", "<i8", "1", "rows that are missing because the file could not be written and the ring was full"),
    Column("events_first", "<i8", "1", "first of its rows in `events`; -1 while rows of several ranks lie mixed"),
    Column("events_count", "<i8", "1", "its rows in `events`; -1 while rows of several ranks lie mixed"),
    Column("clock_reference", "<i8", "ns", "of the fitted clock: the local time at which `clock_offset` holds"),
    Column("clock_offset", "<i8", "ns", "this rank's clock minus rank 0's then"),
    Column("clock_drift", "<f8", "1", "ns that the offset grows per ns"),
    Column("clock_uncertainty", "<i8", "ns", "largest error of the fitted line between the first and last sample"),
)
RANKS_GROUP = "ranks"
"""One row for each rank of the file, there from the start; the last columns are brought up to date at every flush."""

FLUSHED = "flushed"
FLUSHED_DESCRIPTION = f"rows written whole, of {', '.join(GROUPS)}; rows past them are not to be trusted"


_STRUCT_CODES = {"<i8": "q", "<i4": "i", "<i2": "h", "|u1": "B", "<f8": "d", "S64": "64s", "S256": "256s"}


def stored_columns(name: str, *, node: bool) -> tuple[Column, ...]:
    """Return the columns of a group as they are in a rank's or a node's file."""
    return (RANK, *GROUPS[name]) if node else GROUPS[name]


def row_dtype(columns: tuple[Column, ...]) -> np.dtype:
    """Return the packed structured type of one row."""
    return np.dtype([(column.name, column.dtype) for column in columns])


def row_struct(columns: tuple[Column, ...]) -> struct.Struct:
    """Return what packs one row, its texts as bytes, into the bytes of `row_dtype`."""
    return struct.Struct("<" + "".join(_STRUCT_CODES[column.dtype] for column in columns))
