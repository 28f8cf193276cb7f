"""Geometry of saved tensors: which elements of a whole parameter a piece holds, and how pieces become another piece.

It knows numpy arrays of elements whose type does not matter; neither files nor ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np


class Sliced(NamedTuple):
    """Slice `part` of `parts` even ones along dimension `dim`.

    With `groups` > 1 the dimension is that many equal blocks, each of which is sliced, as where query, key and value
    share one matrix.
    """

    dim: int
    part: int
    parts: int
    groups: int = 1


class Extent(NamedTuple):
    """Elements `begin` to `end` of a parameter, or of a slice of it, counted in row-major order."""

    begin: int
    end: int
    sliced: Sliced | None = None


class Piece(NamedTuple):
    """Where a tensor's elements lie: the file, the name in it, and which they are."""

    file: str
    key: str
    extent: Extent


class PiecesError(ValueError):
    """Pieces that do not make up what is wanted; the message says what is missing."""


def local_shape(shape: Sequence[int], sliced: Sliced | None) -> tuple[int, ...]:
    """Return the shape of a slice of a whole tensor of `shape`.

    Raises
    ------
    PiecesError
        The dimension cannot be cut so.
    """
    if sliced is None:
        return tuple(shape)
    if not 0 <= sliced.dim < len(shape) or shape[sliced.dim] % (sliced.parts * sliced.groups):
        raise PiecesError(f"a tensor of shape {list(shape)} cannot be cut as {sliced}")
    return tuple(n // sliced.parts if dim == sliced.dim else n for dim, n in enumerate(shape))


def whole_shape(shape: Sequence[int], sliced: Sliced | None) -> tuple[int, ...]:
    """Return the shape of the whole tensor of which a slice has `shape`."""
    return tuple(n * sliced.parts if sliced is not None and dim == sliced.dim else n for dim, n in enumerate(shape))


def slice_of(whole: np.ndarray, sliced: Sliced | None) -> np.ndarray:
    """Return the slice as a view with the dimension's blocks apart: (…, groups, rows of a block, …)."""
    if sliced is None:
        return whole
    shape, dim = whole.shape, sliced.dim
    rows = shape[dim] // sliced.groups
    apart = whole.reshape(*shape[:dim], sliced.groups, rows, *shape[dim + 1 :])
    size = rows // sliced.parts
    where: list[slice] = [slice(None)] * apart.ndim
    where[dim + 1] = slice(sliced.part * size, (sliced.part + 1) * size)
    return apart[tuple(where)]


def gather(
    wanted: Extent, shape: Sequence[int], pieces: Iterable[Piece], read: Callable[[Piece], np.ndarray], dtype: np.dtype
) -> np.ndarray:
    """Return the wanted elements of a tensor of `shape`, flat, from pieces that may be cut otherwise.

    `read` returns a piece's elements, flat; only pieces that hold wanted elements are read.

    Raises
    ------
    PiecesError
        Elements are missing.
    """
    pieces = list(pieces)
    if all(piece.extent.sliced == wanted.sliced for piece in pieces):
        return _gather_flat(wanted, pieces, read, dtype)
    whole = np.empty(tuple(shape), dtype=dtype)
    for sliced in dict.fromkeys(piece.extent.sliced for piece in pieces):
        part = slice_of(whole, sliced)
        same = [piece for piece in pieces if piece.extent.sliced == sliced]
        part[...] = _gather_flat(Extent(0, part.size, sliced), same, read, dtype).reshape(part.shape)
    covered = sum(piece.extent.end - piece.extent.begin for piece in pieces)
    if covered != prod(shape):
        raise PiecesError(f"its pieces hold {covered} of {prod(shape)} elements")
    return slice_of(whole, wanted.sliced).reshape(-1)[wanted.begin : wanted.end]


def _gather_flat(
    wanted: Extent, pieces: Iterable[Piece], read: Callable[[Piece], np.ndarray], dtype: np.dtype
) -> np.ndarray:
    out = np.empty(wanted.end - wanted.begin, dtype=dtype)
    found = 0
    for piece in pieces:
        begin, end = max(piece.extent.begin, wanted.begin), min(piece.extent.end, wanted.end)
        if begin < end:
            values = read(piece)[begin - piece.extent.begin : end - piece.extent.begin]
            out[begin - wanted.begin : end - wanted.begin] = values
            found += end - begin
    if found != len(out):
        raise PiecesError(f"its pieces hold {found} of the {len(out)} elements that are wanted")
    return out
