"""Tensors in message buffers, whatever memory these are of: what is said of a tensor, and where its bytes lie.

It copies nothing and knows no device.
"""

from math import prod

import torch

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


Description = tuple[str, tuple[int, ...], bool, tuple[int, ...]]
"""A tensor's type by name, its shape, whether it wants a gradient, and its dimensions from slowest to fastest."""


def describe(tensor: torch.Tensor) -> Description:
    """Return the name of a tensor's type, its shape, whether it wants a gradient, and its layout."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"it holds a {type(tensor).__name__}, which is neither a tensor nor a plain value")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"it holds a tensor of layout {tensor.layout} and type {tensor.dtype}; make it dense first")
    order = () if tensor.is_contiguous() else _order(tensor)
    return _NAMES.get(tensor.dtype) or str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, order


def placed(tensor: torch.Tensor, buffer: torch.Tensor, at: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the part of a buffer that a tensor is copied into from byte `at` on, and the tensor as it is copied.

    Its layout is its own if that has no gaps.
    """
    value = tensor.detach()
    if not value.is_contiguous() and (order := _order(value)):
        value = value.permute(order)
    return buffer[at : at + value.nbytes].view(value.dtype).view(value.shape), value


def loaded(buffer: torch.Tensor, at: int, described: Description) -> torch.Tensor:
    """Return a tensor that is a view of a buffer, a new leaf."""
    dtype, shape, wants_gradient, order = described
    kind = _DTYPES[dtype]
    value = buffer[at : at + kind.itemsize * prod(shape)].view(kind)
    if order:
        places = [order.index(dim) for dim in range(len(order))]
        value = value.view([shape[dim] for dim in order]).permute(places)
    else:
        value = value.view(shape)
    # .data, not .detach(): what is changed in place must not count as a change of the message's other tensors
    return value.data.requires_grad_() if wants_gradient else value.data


def _order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions from the slowest to the fastest; empty where that leaves gaps or overlaps."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim)))
    return order if tensor.permute(order).is_contiguous() else ()
