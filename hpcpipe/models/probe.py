"""Look through a user's chain of layers before it is trained: what it costs, what crosses between them, what is wrong.

The layers are called once on meta, so nothing gets memory; those that cannot be called there are called for real.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.flop_counter import FlopCounterMode

from hpcpipe.job.factory import explain
from hpcpipe.job.words import type_of
from hpcpipe.models.deferred import deferrable
from hpcpipe.models.layer import Layer, build
from hpcpipe.models.user import Chain, WrongModelError

_IN_PLACE = "that requires grad is being used in an in-place operation"
_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one layer does for a micro-batch: multiply-adds, values kept for the backward, bytes of its output."""

    multiply_adds: float
    kept: float
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of every layer, and what the user should know: each a sentence."""

    layers: tuple[Seen, ...]
    notices: tuple[str, ...]


def look_through(chain: Chain, batch: tuple[Any, Any], *, split: bool) -> Look:
    """Call the layers and the loss once.

    Parameters
    ----------
    batch
        Inputs and targets of a micro-batch.
    split
        Whether weight gradients are to be put off.

    Raises
    ------
    WrongModelError
        The model cannot be trained in a pipeline; the text names the layer and the way out.
    """
    notices = []
    try:
        with torch.device("meta"):
            modules = build(chain.layers, range(len(chain.layers)), seed=0)
        _refuse(chain.layers, modules)
        seen, output = _call_all(chain.layers, modules, _moved(batch[0], "meta"))
    except WrongModelError:
        raise
    except Exception as error:
        failed = error
        modules = build(chain.layers, range(len(chain.layers)), seed=0)
        _refuse(chain.layers, modules)
        try:
            seen, output = _call_all(chain.layers, modules, batch[0])
        except _LayerError as worse:
            raise WrongModelError(str(worse)) from worse.__cause__
        notices.append(
            f"the model was called for real to see its shapes, as it cannot be called on torch's meta device ({failed})"
        )
    else:
        _try_loss(chain, output, _moved(batch[1], "meta"))
    if split:
        notices += deferrable(nn.ModuleList(modules))[1]
    return Look(tuple(seen), tuple(notices))


class _LayerError(Exception):
    """A layer cannot be called."""


def _call_all(layers: Sequence[Layer], modules: Sequence[nn.Module], value: Any) -> tuple[list[Seen], Any]:
    seen = []
    for layer, module in zip(layers, modules, strict=True):
        name = f"layer {layer.name} ({type(module).__name__})"
        entry = _each(value, _leaf)
        flat = _tensors(entry, "the input")
        versions = [tensor._version for tensor in flat]
        parameters = {id(parameter) for parameter in module.parameters()}
        kept: list[int] = []

        def keep(tensor: torch.Tensor, kept: list[int] = kept, parameters: set[int] = parameters) -> torch.Tensor:
            base = tensor if tensor._base is None else tensor._base
            if id(base) not in parameters:
                kept.append(tensor.numel())
            return tensor

        try:
            with (
                FlopCounterMode(display=False) as counter,
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            ):
                value = module(entry)
        except Exception as error:
            if _IN_PLACE in str(error):
                raise WrongModelError(_changes_input(name)) from error
            shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in flat)
            raise _LayerError(
                f"{name} fails when it is called with {shapes or repr(value)}: {explain(error)}"
            ) from error
        if any(tensor._version != version for tensor, version in zip(flat, versions, strict=True)):
            raise WrongModelError(_changes_input(name))
        outputs = _tensors(value, f"the output of {name}")
        if not outputs:
            raise WrongModelError(f"{name} returned {value!r}, which holds no tensor")
        numbers = sum(tensor.numel() for tensor in outputs)
        size = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
        seen.append(Seen(counter.get_total_flops() / 2 + numbers, float(sum(kept)), size))
    return seen, value


def _changes_input(name: str) -> str:
    return (
        f"{name} changes its input in place; the layer before it may lie on another rank, or need its output for its "
        "own backward, so let it return a new tensor (for example nn.ReLU() without inplace=True)"
    )


def _refuse(layers: Sequence[Layer], modules: Sequence[nn.Module]) -> None:
    """Refuse layers that cannot mean the same in every layout."""
    for layer, whole in zip(layers, modules, strict=True):
        for path, module in whole.named_modules():
            name = f"{layer.name}.{path}".rstrip(".")
            running = isinstance(module, _NormBase) and module.track_running_stats
            if module.training and (isinstance(module, _BatchNorm) or running):
                raise WrongModelError(
                    f"{name} is {type_of(module)}: its statistics would be those of a micro-batch, not of the "
                    "batch, so the result would depend on microbatch_size and the running ones on the layout; use "
                    "GroupNorm or LayerNorm, or freeze it (call .eval() on it before it is returned)"
                )
            if any(nn.parameter.is_lazy(parameter) for parameter in module._parameters.values()):
                raise WrongModelError(
                    f"{name} is {type_of(module)}, whose parameters get their size from the first input, but "
                    "stages never see the first input; give the size"
                )


def _try_loss(chain: Chain, output: Any, targets: Any) -> None:
    """Check that the loss is a scalar, where it can be called on meta."""
    given = chain.on_meta
    try:
        loss = given.loss(output, targets)
    except Exception:
        return  # what is wrong with it, if anything, shows with real values
    check_loss(loss)


def check_loss(loss: Any) -> None:
    """Refuse a loss that is no differentiable scalar.

    Raises
    ------
    WrongModelError
        It is none.
    """
    if not isinstance(loss, torch.Tensor):
        raise WrongModelError(f"the loss returned {type_of(loss)}; it must return a tensor with one number")
    if loss.dim() != 0:
        raise WrongModelError(
            f"the loss returned a tensor of shape {tuple(loss.shape)}; it must return one number: its mean over the "
            'micro-batch (reduction="mean"), or a pair of functions, one that sums and one that counts'
        )
    if not loss.is_floating_point():
        raise WrongModelError(f"the loss returned a number of type {loss.dtype}; it must be a floating one")


def _tensors(value: Any, where: str) -> list[torch.Tensor]:
    """Return the tensors of a value.

    Raises
    ------
    WrongModelError
        It holds something that cannot cross between stages.
    """
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in _PLAIN:
        return []
    if type(value) in (list, tuple):
        return [t for i, each in enumerate(value) for t in _tensors(each, f"{where}[{i}]")]
    if type(value) is dict and all(type(key) is str for key in value):
        return [t for key, each in value.items() for t in _tensors(each, f"{where}[{key!r}]")]
    what = "a dict with keys that are no strings" if type(value) is dict else f"{type_of(value)}"
    raise WrongModelError(
        f"{where} is {what}; between layers go tensors, and plain tuples, lists and dicts (by names) of tensors and of "
        "plain values"
    )


def _each(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        parts = [_each(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {key: _each(part, function) for key, part in value.items()}
    return value


def _moved(value: Any, device: str) -> Any:
    return _each(value, lambda tensor: torch.empty_like(tensor, device=device))


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex())
