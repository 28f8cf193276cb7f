"""Token ids in files, memory-mapped: raw ones (nanoGPT), Megatron's pairs, .npy; a text's bytes are tokens too.

A file is one row of tokens; where documents in it are known, they can be told apart by a token put between them. What
a sequence is, and in which order sequences are drawn, is not known here.
"""

from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcpipe.data.megatron import read_index
from hpcpipe.data.order import Samples

HEADERS = {20240520: np.uint16, 20240801: np.uint32}
"""The magic numbers of .bin files with a header (llm.c, modded-nanogpt), and the type of the ids behind it."""
_HEADER_BYTES = 1024

Ids = NDArray[np.int64]


class Row(Protocol):
    """A row of tokens."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def __len__(self) -> int:
        """Return how many tokens there are."""

    def read(self, begins: Samples, length: int) -> Ids:
        """Return (len(begins), length) ids: as many pieces of the row."""


class Array:
    """A row that is an array, mapped into memory."""

    def __init__(self, name: str, array: NDArray[np.integer]) -> None:
        self.name = name
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def read(self, begins: Samples, length: int) -> Ids:
        """Return (len(begins), length) ids."""
        return self._array[begins[:, None] + np.arange(length)].astype(np.int64)


class Documents:
    """Documents of a row one after the other, with an id behind each that does not end with it.

    Sequences are cut from the whole, so a document may begin in the midst of one (packing); attention sees across.

    Parameters
    ----------
    begins
        Where each document begins in `row`, and where the last one ends.
    """

    def __init__(self, row: Row, begins: NDArray[np.int64], end_of_document: int) -> None:
        self.name = row.name
        self._row, self._end = row, end_of_document
        self._begins = begins[:-1]
        self._lengths = np.diff(begins)
        filled = np.flatnonzero(self._lengths)
        lacks = np.zeros(len(self._lengths), dtype=np.int64)
        lacks[filled] = row.read(begins[1:][filled] - 1, 1)[:, 0] != end_of_document
        self._places = np.concatenate([[0], np.cumsum(self._lengths + lacks)])

    def __len__(self) -> int:
        return int(self._places[-1])

    def read(self, begins: Samples, length: int) -> Ids:
        """Return (len(begins), length) ids."""
        places = begins[:, None] + np.arange(length)
        document = np.searchsorted(self._places, places, side="right") - 1
        inside = places - self._places[document]
        behind = inside == self._lengths[document]
        there = (self._begins[document] + inside - behind).reshape(-1)
        ids = self._row.read(there, 1).reshape(places.shape)
        return np.where(behind, self._end, ids)


class Opened(NamedTuple):
    """A row and where the documents in it begin, with the end of the last one; the ends of the row where unknown."""

    row: Row
    documents: NDArray[np.int64]


def open_bytes(path: Path) -> Row:
    """Return the bytes of a file as tokens."""
    return Array(str(path), np.memmap(path, dtype=np.uint8, mode="r"))


def open_tokens(path: Path, *, dtype: str = "auto", dataset: str = "tokens", end_of_document: int = -1) -> Row:
    """Open a file of tokens; the suffix tells its format.

    Parameters
    ----------
    dtype
        The type of the ids in a raw file, `"auto"` for uint16.
    dataset
        The name of the data set in an HDF5 file.
    end_of_document
        An id put behind each document that does not end with it; -1 for none.

    Raises
    ------
    ValueError
        The file is not what its suffix says.
    OSError
        It cannot be read.
    """
    opened = _open(path, dtype, dataset)
    return opened.row if end_of_document < 0 else Documents(opened.row, opened.documents, end_of_document)


def _open(path: Path, dtype: str, dataset: str) -> Opened:
    index = path.with_suffix(".idx")
    if path.suffix in (".bin", ".idx") and index.exists():
        found = read_index(index)
        tokens = np.memmap(path.with_suffix(".bin"), dtype=found.dtype, mode="r")
        if len(tokens) != found.documents[-1]:
            raise ValueError(f"{path}: holds {len(tokens)} tokens, but {index.name} says {found.documents[-1]}")
        return Opened(Array(str(path), tokens), found.documents)
    if path.suffix == ".npy":
        row: Row = _npy(path)
    elif path.suffix in (".h5", ".hdf5"):
        from hpcpipe.data.hdf5 import open_hdf5

        row = open_hdf5(path, dataset)
    elif path.suffix == ".bin":
        row = _raw(path, dtype)
    else:
        raise ValueError(f"{path}: token files end with .bin (raw, or with an .idx beside it), .npy, .h5 or .hdf5")
    return Opened(row, np.array([0, len(row)]))


def _npy(path: Path) -> Row:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path}: is no .npy file of numbers: {error}") from None
    check_ids(str(path), array.shape, array.dtype)
    return Array(str(path), array)


def _raw(path: Path, dtype: str) -> Row:
    head = np.fromfile(path, dtype="<i4", count=1)
    begin, kind = 0, np.dtype(np.uint16 if dtype == "auto" else dtype)
    if len(head) and int(head[0]) in HEADERS:
        begin, kind = _HEADER_BYTES, np.dtype(HEADERS[int(head[0])])
    size = path.stat().st_size - begin
    if size % kind.itemsize:
        raise ValueError(f"{path}: {size} bytes are no whole number of {kind.name} ids; set [data] dtype to its type")
    return Array(str(path), np.memmap(path, dtype=kind.newbyteorder("<"), mode="r", offset=begin))


def check_ids(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse an array that is no row of ids."""
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"{name}: holds {dtype} of shape {shape}; a row of whole numbers is needed: (tokens,)")
