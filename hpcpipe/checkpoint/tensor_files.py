"""Safetensors files as bytes: written durably and read back, hashed, or mapped into memory; no framework is needed.

The `safetensors` library writes the files and checks them when they are opened; elements stay raw, whatever their type.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from hpcpipe.checkpoint.manifest import CheckpointError, FileEntry

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
"""The types of elements: as safetensors' headers call them, and as torch and numpy do."""

_WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1, "C64": 8}
_BLOCK = 1 << 24

Note = Callable[[int], None]
"""Called now and then while files are read or written, with the bytes that are done since."""


def quiet(_: int) -> None:
    """Take note of nothing."""


class RawTensor(NamedTuple):
    """Elements as they lie in memory: flat, of an unsigned type as wide as the true one (`dtype`, in safetensors)."""

    dtype: str
    shape: tuple[int, ...]
    elements: np.ndarray


def element_type(dtype: str) -> np.dtype:
    """Return the unsigned numpy type as wide as an element."""
    return np.dtype(f"u{_WIDTHS[dtype]}")


def write_tensors(path: Path, tensors: Mapping[str, RawTensor], *, note: Note = quiet) -> FileEntry:
    """Write a file, sync it, read it back and compare it with the memory; return its size and hash.

    Raises
    ------
    OSError
        It cannot be written, or what is read back is not what was written.
    """
    specs = {
        name: TensorSpec(
            dtype=DTYPES[tensor.dtype],
            shape=list(tensor.shape),
            data_ptr=tensor.elements.ctypes.data,
            data_len=tensor.elements.nbytes,
        )
        for name, tensor in tensors.items()
    }
    try:
        serialize_file(specs, str(path), metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {_reason(error)}") from None
    path.chmod(path.parent.stat().st_mode & 0o666)  # the library makes files that nobody else may read
    note(0)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
        note(0)
        if hasattr(os, "posix_fadvise"):  # so that what is read comes from the disk where the system can do so
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    entry = hash_file(path, note=note)
    with TensorFile(path) as written:
        for name, tensor in tensors.items():
            if _digest(written.elements(name)) != _digest(tensor.elements):
                raise OSError(f"{path} does not hold what was written to it ({name} differs)")
            note(0)
    return entry


def hash_file(path: Path, *, note: Note = quiet) -> FileEntry:
    """Return size and hash of a file.

    Raises
    ------
    OSError
        It cannot be read.
    """
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_BLOCK)
        view = memoryview(buffer)
        while count := file.readinto(buffer):
            digest.update(view[:count])
            size += count
            note(count)
    return FileEntry(size, digest.hexdigest())


def check_file(path: Path, expected: FileEntry, *, content: bool, note: Note = quiet) -> str:
    """Return what is wrong with a file, or nothing; with `content` it is read whole."""
    try:
        size = path.stat().st_size
        if size != expected.num_bytes:
            what = "truncated" if size < expected.num_bytes else "too long"
            return f"{path.name} is {what}: {size} bytes instead of {expected.num_bytes}"
        if content and hash_file(path, note=note).xxh3_128 != expected.xxh3_128:
            return f"{path.name} is damaged: its hash is not the one of the manifest"
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror or error}"
    return ""


class TensorFile:
    """A safetensors file mapped into memory.

    Raises
    ------
    CheckpointError
        It is none, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(str(path), framework="numpy"):  # checks the header against the file
                pass
            self._bytes = np.memmap(path, dtype=np.uint8, mode="r")
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None
        length = int.from_bytes(self._bytes[:8].tobytes(), "little")
        self._header = json.loads(self._bytes[8 : 8 + length].tobytes())
        self._header.pop("__metadata__", None)
        self._data = 8 + length

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        del self._bytes

    def elements(self, name: str) -> np.ndarray:
        """Return a tensor's elements, flat, without copying them.

        Raises
        ------
        CheckpointError
            It is not there.
        """
        try:
            entry = self._header[name]
        except KeyError:
            raise CheckpointError(f"no tensor {name}") from None
        begin, end = entry["data_offsets"]
        return self._bytes[self._data + begin : self._data + end].view(element_type(entry["dtype"]))

    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return type and shape of every tensor."""
        return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in self._header.items()}


def _digest(elements: np.ndarray) -> bytes:
    return xxhash.xxh3_128(elements.data).digest()


def _reason(error: Exception) -> str:
    """Return the system's words in what the library says."""
    text = str(error).partition("I/O error: ")[2] or str(error)
    return text.partition(" (os error")[0]
