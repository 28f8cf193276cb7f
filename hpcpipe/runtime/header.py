"""The 64 bytes in front of every message: what it is, for which step, and the true shape of what follows.

One message carries both, so shapes may vary without a second message, and arrival order is free.
"""

import struct
from typing import NamedTuple

import torch

HEADER_BYTES = 64
_LAYOUT = struct.Struct("<IBBHiiqq8I")
_MAGIC = 0x48504350
_MAX_DIMS = 8
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)

assert _LAYOUT.size == HEADER_BYTES


class Header(NamedTuple):
    """Step and micro-batch a tensor belongs to, when its sender enqueued it (ns, sender's clock), dtype and shape."""

    step: int
    microbatch: int
    chunk: int
    sent: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Bytes that follow the header."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def pack_into(self, buffer: memoryview) -> None:
        """Write the header at the start of `buffer`.

        Raises
        ------
        ValueError
            A tensor of more than eight dimensions or of a type that is not sent between stages.
        """
        if len(self.shape) > _MAX_DIMS or self.dtype not in _DTYPES:
            raise ValueError(f"cannot send a tensor of shape {self.shape} and type {self.dtype} between stages")
        dims = self.shape + (0,) * (_MAX_DIMS - len(self.shape))
        code = _DTYPES.index(self.dtype)
        _LAYOUT.pack_into(
            buffer, 0, _MAGIC, code, len(self.shape), self.chunk, self.step, self.microbatch, self.sent, 0, *dims
        )

    @classmethod
    def unpack_from(cls, buffer: memoryview) -> "Header":
        """Read a header.

        Raises
        ------
        ValueError
            The bytes are not one.
        """
        magic, code, ndim, chunk, step, microbatch, sent, _, *dims = _LAYOUT.unpack_from(buffer, 0)
        if magic != _MAGIC or code >= len(_DTYPES) or ndim > _MAX_DIMS:
            raise ValueError("a message between stages does not start with a header of this version of hpcpipe")
        return cls(step, microbatch, chunk, sent, _DTYPES[code], tuple(dims[:ndim]))
