"""Linear, embedding, convolution, norms and scaling whose weight gradients a recording can put off.

Each calls the kernels that torch's own autograd calls, in the same form, so that values and gradients have the same
bits; nothing here knows of modules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from hpcpipe.models.recording import Gradients, Pending, current

_aten = torch.ops.aten


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `rows @ weight.T + bias`, (..., inputs) -> (..., outputs); the weight must want a gradient."""
    if rows.dim() == 2:
        return _Linear.apply(rows, weight, bias)
    shape = rows.shape[:-1] + weight.shape[:1]
    after = bias is not None and not rows.is_contiguous()  # where torch adds the bias after the product, not in it
    rows = rows.reshape(-1, weight.shape[1])
    value = _Linear.apply(rows, weight, None if after else bias).view(shape)
    return _Add.apply(value, bias) if after else value


def embedding(indices: Tensor, weight: Tensor, padding_index: int, scale_by_frequency: bool) -> Tensor:
    """Return the rows of `weight` at the indices; `padding_index` (or -1) is the row that gets no gradient."""
    return _Embedding.apply(indices, weight, padding_index, scale_by_frequency)


def convolution(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolve a batch (batch, channels, ...) with `weight` (outputs, channels / groups, ...)."""
    return _Convolution.apply(images, weight, bias, (stride, padding, dilation, groups))


def layer_norm(value: Tensor, shape: Sequence[int], weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise over the last dimensions, which have `shape`; scale and shift."""
    return _LayerNorm.apply(value, list(shape), weight, bias, eps)


def rms_norm(value: Tensor, shape: Sequence[int], weight: Tensor, eps: float | None) -> Tensor:
    """Divide by the root mean square over the last dimensions, which have `shape`, and scale.

    It takes the steps that torch takes on the CPU: in fp32 for narrower types, rounded after scaling.
    """
    wide = value if value.dtype == torch.float64 else value.float()
    squares = wide.pow(2).mean(tuple(range(-len(shape), 0)), keepdim=True)
    squares = squares + (torch.finfo(wide.dtype).eps if eps is None else eps)
    return _Scale.apply(wide * squares.rsqrt(), weight).to(value.dtype)


def _weight_gradients(
    ctx: Any, kernel: Callable[..., Gradients], tensors: tuple[Tensor, ...], settings: tuple[Any, ...]
) -> Gradients:
    """Compute the gradients of `ctx.parameters` now, or put them off if this backward is recorded."""
    pending = _pending()
    if pending is None:
        return kernel(*tensors, *settings)
    pending.add(ctx.parameters, kernel, tensors, settings)
    return (None,) * len(ctx.parameters)


def _pending() -> Pending | None:
    """Return the recording, but none for a backward that is to be differentiated again (`create_graph`)."""
    return None if torch.is_grad_enabled() else current()


def _save(ctx: Any, *tensors: Tensor | None, parameters: tuple[Tensor | None, ...]) -> None:
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)  # an output that nothing used has the gradient None, as elsewhere in torch
    ctx.parameters = parameters


class _Linear(Function):
    """(rows, inputs) @ (outputs, inputs).T + (outputs): torch.addmm, or torch.mm without a bias."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        _save(ctx, rows, weight, parameters=(weight, bias))
        return torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None
        rows, weight = ctx.saved_tensors
        for_rows, _, for_bias = ctx.needs_input_grad
        of_rows = None
        if for_rows:
            by_columns = rows.stride(0) == 1 and rows.stride(1) == rows.shape[0]
            of_rows = weight.t().mm(gradient.t()).t() if by_columns else gradient.mm(weight)
        settings = (weight.stride(), for_bias)
        return of_rows, *_weight_gradients(ctx, _linear_weights, (gradient, rows), settings)


def _linear_weights(gradient: Tensor, rows: Tensor, weight_strides: tuple[int, ...], for_bias: bool) -> Gradients:
    outputs, inputs = gradient.shape[1], rows.shape[1]
    of_weight = gradient.t().mm(rows) if weight_strides == (inputs, 1) else rows.t().mm(gradient).t()
    return of_weight, gradient.sum_to_size(outputs) if for_bias else None


class _Add(Function):
    """Add a bias to the last dimension."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, bias: Tensor) -> Tensor:
        _save(ctx, parameters=(bias,))
        return value + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None or not ctx.needs_input_grad[1]:
            return gradient, None
        return gradient, *_weight_gradients(ctx, _sum_to, (gradient,), (ctx.parameters[0].shape,))


def _sum_to(gradient: Tensor, shape: torch.Size) -> Gradients:
    return (gradient.sum_to_size(shape),)


class _Embedding(Function):
    """Rows of a table."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, indices: Tensor, weight: Tensor, padding_index: int, scale_by_frequency: bool
    ) -> Tensor:
        _save(ctx, indices, parameters=(weight,))
        ctx.settings = (weight.shape[0], padding_index, scale_by_frequency)  # type: ignore[attr-defined]
        return torch.embedding(weight, indices, padding_index, scale_by_frequency, False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None
        (indices,) = ctx.saved_tensors
        return None, *_weight_gradients(ctx, _embedding_weight, (gradient, indices), ctx.settings), None, None


def _embedding_weight(gradient: Tensor, indices: Tensor, *settings: int) -> Gradients:
    return (_aten.embedding_dense_backward(gradient, indices, *settings),)


class _Convolution(Function):
    """torch.convolution, not transposed; `settings` are stride, padding, dilation and groups."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, images: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]
    ) -> Tensor:
        _save(ctx, images, weight, parameters=(weight, bias))
        stride, padding, dilation, groups = settings
        no_padding = (0,) * len(stride)
        ctx.settings = stride, padding, dilation, False, no_padding, groups  # type: ignore[attr-defined]
        return torch.convolution(images, weight, bias, *ctx.settings)  # type: ignore[attr-defined]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None
        images, weight = ctx.saved_tensors
        biases = None if ctx.parameters[1] is None else weight.shape[:1]
        of_images = None
        if ctx.needs_input_grad[0]:
            mask = (True, False, False)
            of_images, _, _ = _aten.convolution_backward(gradient, images, weight, biases, *ctx.settings, mask)
        settings = (weight, biases, ctx.settings, (False, *ctx.needs_input_grad[1:3]))
        return of_images, *_weight_gradients(ctx, _convolution_weights, (gradient, images), settings), None


def _convolution_weights(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    biases: torch.Size | None,
    settings: tuple[Any, ...],
    mask: tuple[bool, ...],
) -> Gradients:
    _, of_weight, of_bias = _aten.convolution_backward(gradient, images, weight, biases, *settings, mask)
    return of_weight, of_bias


class _LayerNorm(Function):
    """torch.native_layer_norm with a weight.

    One pass over the input makes all its gradients, so B makes the weights' too and keeps them, two vectors, until W.
    Apart, they would cost a second pass and two tensors of the input's size that no other layer keeps.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, value: Tensor, shape: list[int], weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        output, mean, scale = torch.native_layer_norm(value, shape, weight, bias, eps)
        _save(ctx, value, weight, bias, mean, scale, parameters=(weight, bias))
        ctx.shape = shape  # type: ignore[attr-defined]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None, None, None, None
        value, weight, bias, mean, scale = ctx.saved_tensors
        for_value, _, *for_weights, _ = ctx.needs_input_grad
        of_value, *of_weights = _aten.native_layer_norm_backward(
            gradient, value, ctx.shape, mean, scale, weight, bias, (for_value, *for_weights)
        )
        pending = _pending()
        if pending is None:
            return of_value, None, *of_weights, None
        wanted = [index for index in range(2) if for_weights[index]]
        pending.add(tuple([ctx.parameters[i] for i in wanted]), _as_made, tuple([of_weights[i] for i in wanted]))
        return of_value, None, None, None, None


def _as_made(*gradients: Tensor) -> Gradients:
    return gradients


class _Scale(Function):
    """Multiply the last dimensions by a weight; the result has the wider of the two types."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, weight: Tensor) -> Tensor:
        _save(ctx, value, weight, parameters=(weight,))
        return value * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:
            return None, None
        value, weight = ctx.saved_tensors
        of_value = (gradient * weight).to(value.dtype) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_value, None
        settings = (weight.shape, weight.dtype)
        return of_value, *_weight_gradients(ctx, _scale_weight, (gradient, value), settings)


def _scale_weight(gradient: Tensor, value: Tensor, shape: torch.Size, dtype: torch.dtype) -> Gradients:
    return ((gradient * value).sum_to_size(shape).to(dtype),)
