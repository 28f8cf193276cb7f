"""The datasets of a log file: made empty, extended row by row, packed when the run is over.

Columns stay uncompressed while rows arrive: a compressed chunk that grows moves, and under SWMR the place it leaves is
never used again (measured: 20 to 90 times the size). `pack` writes the compressed copy once.
"""

from collections.abc import Mapping, Sequence
from time import perf_counter, sleep

import h5py
import numpy as np

from hpcpipe.events.header import LogHeader, write_header
from hpcpipe.events.schema import (
    FLUSHED,
    FLUSHED_DESCRIPTION,
    GROUPS,
    RANK,
    RANKS,
    RANKS_GROUP,
    Column,
    row_dtype,
    stored_columns,
)

COMPRESSIONS = ("gzip", "lzf", "none")
LIBVER = ("v110", "v110")
"""SWMR works with it, and the h5dump 1.10 of today's sites reads it."""

CHUNK_ROWS = {"events": 8192, "steps": 1024, "clock": 256, "decisions": 64}
_COPY_ROWS = 1 << 18
_LEVEL = 4


def create_layout(
    file: h5py.File,
    headers: Sequence[LogHeader],
    *,
    node: bool = False,
    compression: str = "none",
    chunk_rows: int = CHUNK_ROWS["events"],
    complete: bool = False,
) -> None:
    """Make every attribute, group and dataset that the file will ever have."""
    write_header(file, headers[0], complete=complete, node=node)
    for name in GROUPS:
        group = file.create_group(name)
        chunk = chunk_rows if name == "events" else CHUNK_ROWS[name]
        for column in stored_columns(name, node=node):
            _create_column(group, column, chunk=chunk, compression=compression)
    ranks = file.create_group(RANKS_GROUP)
    table = ranks_table(headers)
    for column in RANKS:
        values = table[column.name].astype(_stored_type(column))
        _describe(ranks.create_dataset(column.name, data=values), column)
    flushed = file.create_dataset(FLUSHED, data=np.zeros(len(GROUPS), dtype="<i8"))
    flushed.attrs["units"] = "1"
    flushed.attrs["description"] = FLUSHED_DESCRIPTION
    flushed.attrs["names"] = list(GROUPS)


def ranks_table(headers: Sequence[LogHeader]) -> np.ndarray:
    """Return the rows of `ranks` with nothing counted yet."""
    table = np.zeros(len(headers), dtype=row_dtype(RANKS))
    for row, header in zip(table, headers, strict=True):
        row["rank"] = header.rank
        row["stage"], row["replica"], row["slice"] = header.coords
        row["events_first"] = row["events_count"] = -1
        row["device"] = header.device.encode()[:64].decode(errors="ignore").encode()
    return table


class Appender:
    """The columns of one group, to which rows are appended."""

    def __init__(self, group: h5py.Group, columns: tuple[Column, ...]) -> None:
        self._datasets = [(column.name, group[column.name]) for column in columns]

    def append(self, at: int, rows: Mapping[str, np.ndarray]) -> float:
        """Write columns of equal length from row `at` on and flush them; done again after a fault it writes the same.

        Returns for how many seconds the interpreter was held.

        Between two columns other threads get their turn: HDF5 holds the interpreter for most of a write, and the
        dispatching thread should never wait longer than for one column.
        """
        count = len(rows[self._datasets[0][0]])
        if not count:
            return 0.0
        held = 0.0
        memory = h5py.h5s.create_simple((count,))
        for name, dataset in self._datasets:
            begin = perf_counter()
            values = np.ascontiguousarray(rows[name])
            low = dataset.id  # the high-level calls take three times as long for the few rows of a step
            low.set_extent((at + count,))
            place = low.get_space()
            place.select_hyperslab((at,), (count,))
            low.write(memory, place, values, low.get_type() if values.dtype.kind == "S" else None)
            low.flush()
            held += perf_counter() - begin
            sleep(0)
        return held


def pack(
    source: h5py.File,
    target: h5py.File,
    headers: Sequence[LogHeader],
    *,
    node: bool,
    compression: str,
    chunk_rows: int = CHUNK_ROWS["events"],
) -> None:
    """Fill an empty file with the complete, compressed copy of a log whose writer is done."""
    counts = [int(count) for count in source[FLUSHED][()]]
    create_layout(target, headers, node=node, compression=compression, chunk_rows=chunk_rows, complete=True)
    for column in RANKS:
        target[RANKS_GROUP][column.name][...] = source[RANKS_GROUP][column.name][()]
    for name, count in zip(GROUPS, counts, strict=True):
        owners = source[name][RANK.name][:count] if node else np.zeros(count, dtype="<i4")
        ranks = source[RANKS_GROUP]["rank"][()] if node else np.zeros(1, dtype="<i4")
        sizes = np.array([np.count_nonzero(owners == rank) for rank in ranks], dtype="<i8")
        firsts = np.cumsum(sizes) - sizes
        starts = dict(zip(ranks.tolist(), firsts.tolist(), strict=True))
        for column in stored_columns(name, node=node):
            _copy(source[name][column.name], target, f"{name}/{column.name}", count, owners, starts)
        if name == "events":
            target[RANKS_GROUP]["events_first"][...] = firsts
            target[RANKS_GROUP]["events_count"][...] = sizes
    target[FLUSHED][...] = counts


def write_totals(file: h5py.File) -> None:
    """Write what the ring has cost as root attributes, where people look first."""
    for name in ("blocked", "blocked_ns", "lost"):
        file.attrs[name] = int(file[RANKS_GROUP][name][()].sum())


def _create_column(group: h5py.Group, column: Column, *, chunk: int, compression: str) -> None:
    filters: Mapping[str, object] = {} if compression == "none" else {"compression": compression, "shuffle": True}
    if compression == "gzip":
        filters = {**filters, "compression_opts": _LEVEL}
    dataset = group.create_dataset(
        column.name,
        shape=(0,),
        maxshape=(None,),
        chunks=(chunk,),
        dtype=_stored_type(column),
        fillvalue=None,
        **filters,
    )
    _describe(dataset, column)


def _stored_type(column: Column) -> np.dtype:
    dtype = np.dtype(column.dtype)
    return h5py.string_dtype("utf-8", dtype.itemsize) if dtype.kind == "S" else dtype


def _describe(dataset: h5py.Dataset, column: Column) -> None:
    dataset.attrs["units"] = column.units
    dataset.attrs["description"] = column.description
    if column.names:
        dataset.attrs["names"] = list(column.names)


def _copy(
    source: h5py.Dataset, file: h5py.File, name: str, count: int, owners: np.ndarray, firsts: Mapping[int, int]
) -> None:
    """Copy a column so that each rank's rows lie together, in their order; `firsts` says where each rank begins."""
    chunk = file[name].chunks[0] * source.dtype.itemsize
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(521, max(1 << 20, 2 * len(firsts) * chunk), 1.0)  # a chunk begun stays until it is full
    target = h5py.Dataset(h5py.h5d.open(file.id, name.encode(), access))
    target.resize((count,))
    place = dict(firsts)
    for at in range(0, count, _COPY_ROWS):
        values, block = source[at : min(count, at + _COPY_ROWS)], owners[at : at + _COPY_ROWS]
        for rank, start in place.items():
            mine = values if len(place) == 1 else values[block == rank]
            if len(mine):
                target[start : start + len(mine)] = mine
                place[rank] = start + len(mine)
    target.flush()  # a fault is raised here; where the dataset is merely closed it would be swallowed
