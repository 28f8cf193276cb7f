"""A row of tokens in an HDF5 file: mapped into memory where it lies in one piece, else read by h5py piece by piece.

The one file of this room that opens HDF5. These are the user's files, written once and closed; what is special about
the event log (a live writer, torn files) is not known here.
"""

from pathlib import Path

import h5py
import numpy as np

from hpcpipe.data.order import Samples
from hpcpipe.data.tokens import Array, Ids, Row, check_ids


class Pieces:
    """A chunked or compressed data set; one piece is read at a time, in the thread that reads ahead."""

    def __init__(self, name: str, dataset: h5py.Dataset) -> None:
        self.name = name
        self._dataset = dataset

    def __len__(self) -> int:
        return self._dataset.shape[0]

    def read(self, begins: Samples, length: int) -> Ids:
        """Return (len(begins), length) ids."""
        return np.stack([self._dataset[begin : begin + length] for begin in begins.tolist()]).astype(np.int64)


def open_hdf5(path: Path, dataset: str) -> Row:
    """Open a data set of an HDF5 file.

    Raises
    ------
    ValueError
        The file has no such data set, or it is no row of whole numbers.
    """
    name = f"{path}, data set {dataset}"
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: is no HDF5 file that can be read: {error}") from None
    found = file.get(dataset)
    if not isinstance(found, h5py.Dataset):
        there: list[str] = []
        file.visititems(lambda key, node: there.append(key) if isinstance(node, h5py.Dataset) else None)
        raise ValueError(f"{path}: has no data set {dataset!r}; it has {', '.join(there) or 'none'}")
    check_ids(name, found.shape, found.dtype)
    offset = found.id.get_offset()
    if found.chunks is not None or offset is None:
        return Pieces(name, found)
    array = np.memmap(path, dtype=found.dtype, mode="r", offset=offset, shape=found.shape)
    file.close()
    return Array(name, array)
