"""The .idx file of a Megatron-LM indexed data set: the type of the ids in the .bin beside it, where documents begin.

Format as in Megatron-LM's megatron/core/datasets/indexed_dataset.py, version 1.
"""

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<QBQQ")
_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


class Index(NamedTuple):
    """The type of the ids; the first token of every document and, last, the number of all tokens."""

    dtype: np.dtype
    documents: NDArray[np.int64]


def read_index(path: Path) -> Index:
    """Read an .idx file.

    Raises
    ------
    ValueError
        It is of another format, its ids are no whole numbers, or its sequences do not follow each other in the .bin.
    """
    data = np.memmap(path, dtype=np.uint8, mode="r")
    begin = len(_MAGIC) + _HEAD.size
    if len(data) < begin or data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise ValueError(f"{path}: is no index of a Megatron data set (its first bytes are not MMIDIDX)")
    version, code, sequences, documents = _HEAD.unpack(data[len(_MAGIC) : begin].tobytes())
    if version != 1:
        raise ValueError(f"{path}: has version {version} of the format; version 1 is known")
    if code not in _TYPES:
        raise ValueError(f"{path}: its ids have the type number {code}; whole numbers are {sorted(_TYPES)}")
    if len(data) < begin + 12 * sequences + 8 * documents:
        raise ValueError(f"{path}: is too short for its {sequences} sequences and {documents} document bounds")
    dtype = np.dtype(_TYPES[code])
    lengths = data[begin : begin + 4 * sequences].view("<i4").astype(np.int64)
    begin += 4 * sequences
    pointers = data[begin : begin + 8 * sequences].view("<i8")
    begin += 8 * sequences
    bounds = data[begin : begin + 8 * documents].view("<i8")
    places = np.concatenate([[0], np.cumsum(lengths)])
    if not np.array_equal(pointers, places[:-1] * dtype.itemsize):
        raise ValueError(f"{path}: its sequences do not follow each other in the .bin file")
    if documents < 1 or bounds[0] != 0 or bounds[-1] != sequences or (np.diff(bounds) < 0).any():
        raise ValueError(f"{path}: its document bounds do not go from 0 to its {sequences} sequences")
    return Index(dtype, places[bounds])
