"""The datasets of a log file: made empty, extended row by row, packed when the run is over.

Columns stay uncompressed while rows arrive: a compressed chunk that grows moves, and under SWMR the place it leaves is
never used again (measured: 20 to 90 times the size). `pack` writes the compressed copy once.
"""

from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader, write_header
from hpcpipe.events.schema import FLUSHED, FLUSHED_DESCRIPTION, GROUPS, Column

COMPRESSIONS = ("gzip", "lzf", "none")
LIBVER = ("v110", "v110")
"""SWMR works with it, and the h5dump 1.10 of today's sites reads it."""

_CHUNK_ROWS = {"events": 8192, "steps": 1024, "clock": 256, "decisions": 64}
_COPY_ROWS = 1 << 18


def create_layout(file: h5py.File, header: LogHeader, *, compression: str = "none", complete: bool = False) -> None:
    """Make every attribute, group and dataset that the file will ever have."""
    write_header(file, header, complete=complete)
    for name, columns in GROUPS.items():
        group = file.create_group(name)
        for column in columns:
            _create_column(group, column, chunk=_CHUNK_ROWS[name], compression=compression)
    flushed = file.create_dataset(FLUSHED, data=np.zeros(len(GROUPS), dtype="<i8"))
    flushed.attrs["units"] = "1"
    flushed.attrs["description"] = FLUSHED_DESCRIPTION
    flushed.attrs["names"] = list(GROUPS)


class Appender:
    """The columns of one group, to which rows are appended."""

    def __init__(self, group: h5py.Group, columns: tuple[Column, ...]) -> None:
        self._datasets = [(column.name, group[column.name]) for column in columns]

    def append(self, at: int, rows: np.ndarray) -> None:
        """Write structured rows from row `at` on and flush them; done again after a fault it writes the same."""
        if not len(rows):
            return
        memory = h5py.h5s.create_simple((len(rows),))
        for name, dataset in self._datasets:
            values = np.ascontiguousarray(rows[name])
            low = dataset.id  # the high-level calls take three times as long for the few rows of a step
            low.set_extent((at + len(rows),))
            place = low.get_space()
            place.select_hyperslab((at,), (len(rows),))
            low.write(memory, place, values, low.get_type() if values.dtype.kind == "S" else None)
            low.flush()


def pack(source: h5py.File, target: Path, header: LogHeader, *, compression: str) -> None:
    """Write the complete, compressed copy of a log whose writer is done."""
    counts = [int(count) for count in source[FLUSHED][()]]
    with h5py.File(target, "w", libver=LIBVER, locking="best-effort") as file:
        create_layout(file, header, compression=compression, complete=True)
        for (name, columns), count in zip(GROUPS.items(), counts, strict=True):
            for column in columns:
                _copy(source[name][column.name], file[name][column.name], count)
        file[FLUSHED][...] = counts


def _create_column(group: h5py.Group, column: Column, *, chunk: int, compression: str) -> None:
    filters: Mapping[str, object] = {} if compression == "none" else {"compression": compression, "shuffle": True}
    dtype = np.dtype(column.dtype)
    if dtype.kind == "S":
        dtype = h5py.string_dtype("utf-8", dtype.itemsize)
    dataset = group.create_dataset(
        column.name, shape=(0,), maxshape=(None,), chunks=(chunk,), dtype=dtype, fillvalue=None, **filters
    )
    dataset.attrs["units"] = column.units
    dataset.attrs["description"] = column.description
    if column.names:
        dataset.attrs["names"] = list(column.names)


def _copy(source: h5py.Dataset, target: h5py.Dataset, count: int) -> None:
    target.resize((count,))
    for at in range(0, count, _COPY_ROWS):
        end = min(count, at + _COPY_ROWS)
        target[at:end] = source[at:end]
