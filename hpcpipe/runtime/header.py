"""What stands in front of every message: what it is, for which step, and the true types and shapes of what follows.

One message carries all of it, so shapes may vary and a value may have several tensors without a second message, and
arrival order is free. Types are names, so that no array library is needed to read one.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

ALIGNMENT = 64
"""Where tensors begin in a message: at its multiples, as vector units and caches like it."""

NOTICE_BYTES = 64
"""The part of fixed length; alone, it says that the message follows apart from its slot."""

ROOM_FOR_ONE = 128
"""Bytes that a header takes at most where the value is one tensor of up to nine dimensions."""

_FIXED = struct.Struct("<IHHiiqqII")
_TENSOR = struct.Struct("<BBH")
_MAGIC = 0x4850_4351
_MOST_DIMS = 64
_LARGEST = 2**63 - 1
_WANTS_GRADIENT, _PERMUTED = 1, 2
_ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "complex64": 8,
    "complex128": 16,
}
_NAMES = tuple(_ITEM_BYTES)
_CODES = {name: code for code, name in enumerate(_NAMES)}

assert _FIXED.size <= NOTICE_BYTES


Tensor = tuple[str, tuple[int, ...], bool, tuple[int, ...]]
"""What a device says of a tensor: the fields of `Described`."""


class Described(NamedTuple):
    """One tensor: the name of its type, its shape, whether its receiver is to give a gradient back, and its layout.

    `order` are its dimensions from the slowest to the fastest in memory; empty for the usual order. The receiver's has
    the same: kernels may round otherwise over another layout, and bits must not depend on where a model is cut.
    """

    dtype: str
    shape: tuple[int, ...]
    wants_gradient: bool = False
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Content:
    """What a message holds: the structure of its value, the tensors and where each begins, and sizes in bytes.

    `size` is that of the whole message, `payload_bytes` that of the tensors alone.
    """

    structure: str
    tensors: tuple[Described, ...]
    offsets: tuple[int, ...]
    payload_bytes: int
    size: int
    packed: bytes

    @classmethod
    def of(cls, structure: str, tensors: Iterable[Tensor]) -> "Content":
        """Lay a message out; the same content is laid out once.

        Raises
        ------
        ValueError
            A tensor of more than 64 dimensions or of a type that is not sent between stages.
        """
        return _lay_out(structure, tuple(tensors))

    @property
    def head_bytes(self) -> int:
        """Bytes before the first tensor: the header, and the gap that aligns what follows."""
        return self.offsets[0] if self.offsets else self.size


class Header(NamedTuple):
    """Step, micro-batch and chunk of the task it feeds, when its sender enqueued it (ns, sender's clock), content.

    The chunk is the receiver's: with virtual stages it may be another one than the sender's.
    """

    step: int
    microbatch: int
    chunk: int
    sent: int
    content: Content

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensors."""
        return self.content.payload_bytes

    def pack_into(self, buffer: memoryview) -> None:
        """Write the header at the start of `buffer`."""
        content = self.content
        _pack_fixed(buffer, self, 0)
        buffer[_FIXED.size : _FIXED.size + len(content.packed)] = content.packed

    def pack_notice(self, buffer: memoryview, tag: int) -> None:
        """Write that the message itself comes with `tag`, apart."""
        _pack_fixed(buffer, self, tag)


class Notice(NamedTuple):
    """A message that does not come in its slot: its step and chunk, its size in bytes, and the tag it comes with."""

    step: int
    chunk: int
    size: int
    tag: int


class Short(NamedTuple):
    """A header that is longer than what was given to be read: as many bytes are needed."""

    needed: int


def read(buffer: memoryview) -> Header | Notice | Short:
    """Read what a message begins with; 64 bytes at least must be there.

    Raises
    ------
    ValueError
        The bytes are no header.
    """
    magic, chunk, count, step, microbatch, sent, size, length, tag = _FIXED.unpack_from(buffer, 0)
    if magic != _MAGIC:
        raise ValueError("a message between stages does not start with a header of this version of hpcpipe")
    if tag:
        return Notice(step, chunk, size, tag)
    if _FIXED.size + length > len(buffer):
        return Short(_FIXED.size + length)
    content = _read(bytes(buffer[_FIXED.size : _FIXED.size + length]), count)
    return Header(step, microbatch, chunk, sent, content)


def _pack_fixed(buffer: memoryview, header: Header, tag: int) -> None:
    step, microbatch, chunk, sent, content = header
    _FIXED.pack_into(
        buffer, 0, _MAGIC, chunk, len(content.tensors), step, microbatch, sent, content.size, len(content.packed), tag
    )


@lru_cache(maxsize=1024)
def _lay_out(structure: str, given: tuple[Tensor, ...]) -> Content:
    parts = []
    tensors = tuple(Described(*each) for each in given)
    for dtype, shape, wants_gradient, order in tensors:
        if len(shape) > _MOST_DIMS or dtype not in _CODES or any(size > _LARGEST for size in shape):
            raise ValueError(f"cannot send a tensor of shape {shape} and type {dtype} between stages")
        flags = wants_gradient * _WANTS_GRADIENT + bool(order) * _PERMUTED
        parts.append(_TENSOR.pack(_CODES[dtype], len(shape), flags))
        parts.append(struct.pack(f"<{len(shape)}q", *shape) + bytes(order))
    packed = b"".join([*parts, structure.encode()])
    if len(tensors) > 0xFFFF:
        raise ValueError(f"cannot send {len(tensors)} tensors in one message; {0xFFFF} is the most")
    offsets, payload, end = [], 0, max(NOTICE_BYTES, _FIXED.size + len(packed))
    for dtype, shape, *_ in tensors:
        num_bytes = _ITEM_BYTES[dtype] * prod(shape)
        offsets.append(_aligned(end))
        payload += num_bytes
        end = offsets[-1] + num_bytes
    return Content(structure, tensors, tuple(offsets), payload, end, packed)


@lru_cache(maxsize=1024)
def _read(packed: bytes, count: int) -> Content:
    tensors, at = [], 0
    for _ in range(count):
        code, ndim, flags = _TENSOR.unpack_from(packed, at)
        shape = struct.unpack_from(f"<{ndim}q", packed, at + _TENSOR.size)
        at += _TENSOR.size + 8 * ndim
        order = tuple(packed[at : at + ndim]) if flags & _PERMUTED else ()
        tensors.append(Described(_NAMES[code], shape, bool(flags & _WANTS_GRADIENT), order))
        at += len(order)
    return _lay_out(packed[at:].decode(), tuple(tensors))


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT
