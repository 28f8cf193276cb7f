"""Split a backward into B (input gradients, which another stage waits for) and W (weight gradients, which can wait).

`deferrable` prepares a stage's layers once; B and W of a micro-batch are then

    with recording() as pending:  # B
        gradients = torch.autograd.grad(output, [entry, *parameters], gradient, allow_unused=True)
    ...  # W, at any later time; other micro-batches' B may come before it
    weights = pending.compute(parameters, gradients[1:])

- All trained parameters are asked for in B. Layers that can wait return None for theirs; the others return a gradient
  at once (W folded into B), and `compute` adds both shares. So a first stage, whose `entry` is no float, works alike.
- `weights` has the bits of the unsplit backward's gradients, in the order of `parameters`, None where unused.
- `pending.num_bytes` says what is kept until `compute`. Among it may be `entry`'s and `gradient`'s memory: receive
  buffers that they lie in stay untouched until then.
- LayerNorm's weight gradients fall out of the pass that makes its input's: B makes them, W hands them over.
- Outside a recording the layers behave as torch's own, `.backward()` and second derivatives included.

The modules know nothing of stages, micro-batches or messages.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcpipe.models import deferred_ops
from hpcpipe.models.recording import Pending, recording

__all__ = ["Pending", "deferrable", "recording"]

_MOST_NAMES = 8


def deferrable(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """Let the known layers in `module` put their weight gradients off; return it and notices about the others.

    Known are Linear, Embedding, Conv2d, LayerNorm and RMSNorm of torch.nn, by exact type: a subclass may compute
    something else. Modules keep their identity, parameters, hooks and state-dict names; only their class changes, to a
    subclass of it. The notice names the parameters that stay with B, and why.
    """
    folded = []
    for path, layer in module.named_modules():
        if type(layer) in _DEFERRED and _can_wait(layer):
            layer.__class__ = _DEFERRED[type(layer)]
        elif type(layer) not in _DEFERRED.values():
            own = [name for name, parameter in layer.named_parameters(recurse=False) if parameter.requires_grad]
            folded += [f"{path}.{name}".lstrip(".") + f" ({type(layer).__name__})" for name in own]
    if not folded:
        return module, []
    more = f" and {len(folded) - _MOST_NAMES} more" if len(folded) > _MOST_NAMES else ""
    known = ", ".join(sorted(layer.__name__ for layer in _DEFERRED if layer.__module__.startswith("torch.")))
    return module, [
        f"The gradients of {', '.join(folded[:_MOST_NAMES])}{more} are computed with the input gradients (W folded "
        f"into B): only torch.nn's own {known} can put theirs off, without sparse or renormalised embeddings, "
        "parametrizations, a forward of their own or legacy backward hooks."
    ]


def register(kind: type[nn.Module], deferred: type[nn.Module]) -> None:
    """Let `deferrable` turn layers of a type of the project's own into `deferred`, which puts their gradients off."""
    _DEFERRED[kind] = deferred


def _can_wait(layer: nn.Module) -> bool:
    if "forward" in vars(layer) or layer._is_full_backward_hook is False:
        return False
    if isinstance(layer, nn.Embedding) and (layer.sparse or layer.max_norm is not None):
        return False
    return "weight" in layer._parameters  # else a parametrization makes it anew for each forward


def _waits(layer: nn.Module, value: Tensor, *parameters: Tensor | None) -> bool:
    """Whether this call's weight gradients can be put off; if not, torch's own forward gives them at once.

    They cannot under autocast, whose casts autograd must see, for parameters that are computed or that have hooks,
    which wait for the gradient, and for tensors of types with rules of their own.
    """
    if not torch.is_grad_enabled() or type(value) not in _PLAIN or torch.is_autocast_enabled(value.device.type):
        return False
    if layer._is_full_backward_hook is False:
        return False
    trained = False
    for parameter in parameters:
        if parameter is None:
            continue
        if type(parameter) is not nn.Parameter or parameter._backward_hooks or parameter.is_complex():
            return False
        trained = trained or parameter.requires_grad
    return trained


_PLAIN = (Tensor, nn.Parameter)


class DeferredLinear(nn.Linear):
    """torch.nn.Linear whose weight gradients a recording puts off."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, which callers may use
        """Return (..., out_features) from (..., in_features)."""
        # With a frozen weight torch may multiply another way; what is left, a sum for the bias, is not worth a wait.
        if not (self.weight.requires_grad and _waits(self, input, self.weight, self.bias)):
            return super().forward(input)
        return deferred_ops.linear(input, self.weight, self.bias)


class DeferredEmbedding(nn.Embedding):
    """torch.nn.Embedding whose weight gradient a recording puts off."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return (..., embedding_dim) from integers (...)."""
        if self.sparse or self.max_norm is not None or not _waits(self, input, self.weight):
            return super().forward(input)
        padding = -1 if self.padding_idx is None else self.padding_idx
        return deferred_ops.embedding(input, self.weight, padding, self.scale_grad_by_freq)


class DeferredLayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm whose weight gradients a recording puts off."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the input's shape."""
        if not _waits(self, input, self.weight, self.bias):
            return super().forward(input)
        return deferred_ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class DeferredRMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm whose weight gradient a recording puts off, on the CPU; elsewhere torch's kernel is fused."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the input's shape."""
        if x.device.type != "cpu" or not _waits(self, x, self.weight):
            return super().forward(x)
        return deferred_ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class DeferredConv2d(nn.Conv2d):
    """torch.nn.Conv2d whose weight gradients a recording puts off."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return (batch, out_channels, height, width), or without the batch if the input has none."""
        if not _waits(self, input, self.weight, self.bias):
            return super().forward(input)
        images, padding = self._pad(input if input.dim() == 4 else input.unsqueeze(0))
        output = deferred_ops.convolution(
            images, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )
        return output if input.dim() == 4 else output.squeeze(0)

    def _pad(self, images: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """Return the images with the padding that the kernel cannot add itself, and the padding that it can."""
        around = self._reversed_padding_repeated_twice  # left, right, top, bottom
        if self.padding_mode != "zeros":
            return functional.pad(images, around, mode=self.padding_mode), (0, 0)
        if self.padding != "same":
            return images, (0, 0) if isinstance(self.padding, str) else self.padding
        left, right, top, bottom = around
        if (left, top) != (right, bottom):  # "same" with an even kernel: one more behind than in front
            images = functional.pad(images, [0, right - left, 0, bottom - top])
        return images, (top, left)


_DEFERRED: dict[type[nn.Module], Any] = {
    nn.Conv2d: DeferredConv2d,
    nn.Embedding: DeferredEmbedding,
    nn.LayerNorm: DeferredLayerNorm,
    nn.Linear: DeferredLinear,
    nn.RMSNorm: DeferredRMSNorm,
}
