"""The 64 bytes in front of every message: what it is, for which step, and the true shape of what follows.

One message carries both, so shapes may vary without a second message, and arrival order is free. Types are names, so
that no array library is needed to read one.
"""

import struct
from math import prod
from typing import NamedTuple

HEADER_BYTES = 64
_LAYOUT = struct.Struct("<IBBHiiqq8I")
_MAGIC = 0x48504350
_MAX_DIMS = 8
_ITEM_BYTES = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}
_NAMES = tuple(_ITEM_BYTES)
_CODES = {name: code for code, name in enumerate(_NAMES)}
_NO_DIMS = tuple((0,) * missing for missing in range(_MAX_DIMS + 1))

assert _LAYOUT.size == HEADER_BYTES


class Header(NamedTuple):
    """Step, micro-batch and chunk of the task it feeds, when its sender enqueued it (ns, sender's clock), type, shape.

    The chunk is the receiver's: with virtual stages it may be another one than the sender's.
    """

    step: int
    microbatch: int
    chunk: int
    sent: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes that follow the header."""
        return _ITEM_BYTES[self.dtype] * prod(self.shape)

    def pack_into(self, buffer: memoryview) -> None:
        """Write the header at the start of `buffer`.

        Raises
        ------
        ValueError
            A tensor of more than eight dimensions or of a type that is not sent between stages.
        """
        self.check()
        step, microbatch, chunk, sent, dtype, shape = self
        ndim = len(shape)
        dims = shape + _NO_DIMS[_MAX_DIMS - ndim]
        _LAYOUT.pack_into(buffer, 0, _MAGIC, _CODES[dtype], ndim, chunk, step, microbatch, sent, 0, *dims)

    def check(self) -> None:
        """Refuse what cannot be described (ValueError)."""
        if len(self.shape) > _MAX_DIMS or self.dtype not in _CODES:
            raise ValueError(f"cannot send a tensor of shape {self.shape} and type {self.dtype} between stages")

    @classmethod
    def unpack_from(cls, buffer: memoryview) -> "Header":
        """Read a header.

        Raises
        ------
        ValueError
            The bytes are not one.
        """
        magic, code, ndim, chunk, step, microbatch, sent, _, *dims = _LAYOUT.unpack_from(buffer, 0)
        if magic != _MAGIC or code >= len(_NAMES) or ndim > _MAX_DIMS:
            raise ValueError("a message between stages does not start with a header of this version of hpcpipe")
        return cls(step, microbatch, chunk, sent, _NAMES[code], tuple(dims[:ndim]))
