"""Fused copies between a list of tensors and one flat bucket, and its norm, each in one native call; knows no MPI.

Tensors are torch tensors or numpy arrays of float32, float64, float16 or bfloat16 in the memory of the CPU, converted
where the two types differ, rounded to nearest even; torch does not track gradients through the copy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcpipe.collective.abi import native

if TYPE_CHECKING:
    import numpy as np
    import torch


def pack(
    tensors: "Sequence[torch.Tensor | np.ndarray]", flat: "torch.Tensor | np.ndarray", accumulate: bool = False
) -> None:
    """Write the tensors one after the other into `flat`, or add them to it in its type (16-bit ones by way of fp32).

    Elements of `flat` beyond the tensors (its padding) are left as they are.

    Raises
    ------
    TypeError
        Something is of another type, not in CPU memory or not an array.
    ValueError
        Something is not contiguous, or the tensors do not fit `flat`.
    """
    native.pack([_plain(tensor) for tensor in tensors], _plain(flat), accumulate)


def unpack(flat: "torch.Tensor | np.ndarray", tensors: "Sequence[torch.Tensor | np.ndarray]") -> None:
    """Give every tensor its part of `flat`, in order; raises what `pack` raises."""
    native.unpack(_plain(flat), [_plain(tensor) for tensor in tensors])


def square_sum(flat: "torch.Tensor | np.ndarray") -> float:
    """Return the sum of the squares of a flat buffer in CPU memory, in double precision and always in one order."""
    return native.square_sum(_plain(flat))


def padded_length(length: int, parts: int) -> int:
    """Return the least multiple of `parts` that is not less than `length`."""
    if length < 0 or parts < 1:
        raise ValueError(f"cannot pad {length} elements to a multiple of {parts}")
    return -(-length // parts) * parts


def _plain(tensor: "torch.Tensor | np.ndarray") -> "torch.Tensor | np.ndarray":
    """Return the same memory without torch's gradient tracking, which refuses to hand its memory out."""
    return tensor.detach() if hasattr(tensor, "detach") else tensor
