"""Opens a log file for reading, whatever state its writer left it in, and never waits for what is not there.

It knows HDF5's ways, not what the log holds.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_SUPERBLOCK = struct.Struct("<8sBxxB16xQ")
"""Signature, version, consistency flags and end of file, of versions 2 and 3 (HDF5 file format specification, II.A)."""
_SUPERBLOCKS_WITH_FLAGS = (2, 3)
_READ_ATTEMPTS = 16
_CACHE_BYTES = 1 << 16
"""Of unpacked chunks, for each dataset: whole columns or ranges of whole chunks are read, and many files at once."""


class LogError(Exception):
    """A log that cannot be read; the message is a sentence for the user."""


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """Open a log that is closed, is being written at this moment, or was left by a killed process.

    Raises
    ------
    LogError
        The file is missing, is not HDF5 or is cut short.
    OSError
        HDF5 cannot open it.
    """
    if not _is_marked_as_written(path):
        with h5py.File(path, "r", locking=False, rdcc_nbytes=_CACHE_BYTES) as file:
            yield file
        return
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_file_locking(False, False)
    _bound_read_attempts(access)
    flags = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
    with h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access)) as file:
        yield file


def require_stored(dataset: h5py.Dataset, rows: int) -> None:
    """Raise LogError if the file ends before the rows do: HDF5 reads what lies past its end as zeros."""
    size = os.fstat(dataset.file.id.get_vfd_handle()).st_size  # a finished log may have taken the path meanwhile
    for row in range(0, rows, dataset.chunks[0]):
        chunk = dataset.id.get_chunk_info_by_coord((row,))
        if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
            raise LogError(
                f"{dataset.file.filename}: damaged: cut short after {size} bytes, rows of {dataset.name} lie behind"
            )


def _is_marked_as_written(path: Path) -> bool:
    """Return whether the file is marked as being written, which a kill leaves so."""
    try:
        with path.open("rb") as file:
            start = file.read(_SUPERBLOCK.size)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror}") from error
    if not start.startswith(_SIGNATURE):
        raise LogError(f"{path}: " + ("not an HDF5 file" if start else "an empty file"))
    if len(start) < _SUPERBLOCK.size:
        raise LogError(f"{path}: damaged: cut short after {size} bytes")
    _, version, flags, length = _SUPERBLOCK.unpack(start)
    if version not in _SUPERBLOCKS_WITH_FLAGS:
        return False
    if size < length:
        raise LogError(f"{path}: damaged: cut short after {size} of {length} bytes")
    return bool(flags)


def _bound_read_attempts(access: h5py.h5p.PropFAID) -> None:
    """Let a reader give up early on metadata that never becomes whole.

    By default HDF5 tries 100 times and doubles its pause each time, so a file that was cut short would hold us.
    h5py has no name for the call; without it (another platform's linker) only such files are affected.
    """
    try:
        call = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
    except (AttributeError, OSError):
        return
    call.argtypes = (ctypes.c_int64, ctypes.c_uint)
    call(access.id, _READ_ATTEMPTS)
