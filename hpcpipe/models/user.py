"""A model of the user's own as a chain of layers: what their function may return, and how each rank gets its part.

Layers that are builders are built one by one where they are needed. A model that exists only whole is built whole on
every rank and cut, from the same seed, so that initial parameters depend on no layout either way.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from hpcpipe.job.factory import UserCodeError
from hpcpipe.job.words import type_of
from hpcpipe.models.layer import Layer
from hpcpipe.plan import derive_seed

Loss = Callable[[Any, Any], torch.Tensor]
Builder = Callable[[], nn.Module]


class Release(Protocol):
    """Lets go of what a rank has not built."""

    def __call__(self, *, keep_loss: bool) -> None:
        """Let go, of the loss too unless it is to be called here."""


RETURNS = (
    "return (layers, loss): layers a list of modules or of functions that build one each, an nn.Sequential, or a "
    "module with pipeline_layers; loss a function (output, targets) -> scalar, or a pair of one that sums and one that "
    "counts"
)


class WrongModelError(UserCodeError):
    """What a function of the user's returned cannot be trained; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user's function returned, sorted.

    Parameters
    ----------
    names
        Of the layers, in order.
    builders
        Where layers are built one by one; else None.
    modules
        Where the model exists whole; else empty.
    loss, count
        With `count`, the loss is a sum over what `count(targets)` counts; without, a mean over the micro-batch.
    """

    names: tuple[str, ...]
    builders: tuple[Builder, ...] | None
    modules: tuple[nn.Module, ...]
    loss: Loss
    count: Callable[[Any], float] | None


def sort_out(returned: Any) -> Given:
    """Sort what the user's function returned.

    Raises
    ------
    WrongModelError
        It is nothing that can be trained.
    """
    model, loss, count = _with_loss(returned)
    if isinstance(model, nn.Module):
        names, modules = _layers_of(model)
        _every_parameter_is_in_a_layer(model, names, modules)
        return Given(names, None, modules, loss, count)
    if not isinstance(model, list | tuple):
        raise WrongModelError(f"returned {type_of(model)} as the layers; {RETURNS}")
    if not model:
        raise WrongModelError(f"returned no layers; {RETURNS}")
    names = tuple(f"layer.{index}" for index in range(len(model)))
    if all(isinstance(each, nn.Module) for each in model):
        return Given(names, None, tuple(model), loss, count)
    strange = [not callable(each) for each in model]
    for index, each in enumerate(model):
        if strange[index] if any(strange) else isinstance(each, nn.Module):
            raise WrongModelError(
                f"returned {type_of(each)} as layer {index}; a list holds either modules or functions that "
                "build one module each (functools.partial(Block, 64), lambda: Block(64))"
            )
    return Given(names, tuple(model), (), loss, count)


def _with_loss(returned: Any) -> tuple[Any, Loss, Callable[[Any], float] | None]:
    own_loss: Any = getattr(returned, "loss", None)
    if isinstance(returned, nn.Module) and callable(own_loss):
        return returned, own_loss, None
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"{type_of(returned)}"
        missing = "no loss" if isinstance(returned, nn.Module | list) else what
        raise WrongModelError(f"returned {missing}; {RETURNS}")
    model, loss = returned
    if isinstance(loss, tuple | list) and len(loss) == 2 and all(map(callable, loss)):
        return model, loss[0], loss[1]
    if not callable(loss) or isinstance(loss, type):
        raise WrongModelError(
            f"returned {loss!r} as the loss, which cannot be called with (output, targets); {RETURNS}"
        )
    return model, loss, None


def _layers_of(model: nn.Module) -> tuple[tuple[str, ...], tuple[nn.Module, ...]]:
    """Return the layers of a module and their names."""
    listed = getattr(model, "pipeline_layers", None)
    if listed is None:
        if not isinstance(model, nn.Sequential):
            raise WrongModelError(
                f"returned {type_of(model)}, which does not say where it can be cut; give it pipeline_layers, "
                "a list of the names of its layers in the order in which they are called, each with what the one "
                "before returned, such as ['embed', 'blocks', 'head'], or a method that returns one"
            )
        listed = list(model)
    elif callable(listed) and not isinstance(listed, nn.Module):
        listed = listed()
    paths = {id(module): path for path, module in model.named_modules()}
    found: list[tuple[str, nn.Module]] = []
    for entry in listed:
        module = entry
        if isinstance(entry, str):
            try:
                module = model.get_submodule(entry)
            except AttributeError:
                known = ", ".join(name for name, _ in model.named_children())
                raise WrongModelError(
                    f"pipeline_layers names {entry!r}, which the {type(model).__name__} does not have; it has {known}"
                ) from None
        if not isinstance(module, nn.Module):
            raise WrongModelError(f"pipeline_layers holds {type_of(module)}, neither a name nor a module")
        parts = list(module) if isinstance(module, nn.ModuleList) else [module]
        found += [(paths.get(id(part), "") or f"layer.{len(found) + i}", part) for i, part in enumerate(parts)]
    if not found:
        raise WrongModelError(f"the {type(model).__name__} has no layers")
    names = [name for name, _ in found]
    unique = tuple(name if names.count(name) == 1 else f"{name}.use{i}" for i, name in enumerate(names))
    return unique, tuple(module for _, module in found)


def _every_parameter_is_in_a_layer(model: nn.Module, names: Sequence[str], modules: Sequence[nn.Module]) -> None:
    there = {id(parameter) for module in modules for parameter in module.parameters()}
    lost = [name for name, parameter in model.named_parameters() if id(parameter) not in there]
    if lost:
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        raise WrongModelError(
            f"the parameters {', '.join(lost[:4])}{more} are in none of the layers {', '.join(names[:4])}…; "
            "pipeline_layers must name all that the model computes with"
        )


class Whole:
    """A model that its function makes in one piece: made again on each rank, kept until `release`.

    Parameters that several layers share are copied for each, and tied by name (`ties_between`).
    """

    def __init__(self, make: Callable[[], Any], *, seed: int) -> None:
        self._make = make
        self._seed = derive_seed(seed, "init", "whole")
        self._made: dict[bool, Given] = {}
        self._real: Given | None = None

    def given(self, *, meta: bool) -> Given:
        """Return the model on meta, or for real; where its function cannot be called on meta, for real in either case.

        Raises
        ------
        WrongModelError
            It is nothing that can be trained.
        """
        if meta not in self._made:
            torch.manual_seed(self._seed)
            try:
                with torch.device("meta" if meta else "cpu"):
                    self._made[meta] = sort_out(self._make())
            except WrongModelError:
                raise
            except Exception:
                if not meta:
                    raise
                self._made[True] = self.given(meta=False)
        if not meta and self._real is None:
            self._real = replace(self._made[False], modules=())
        return self._made[meta]

    def take(self, index: int) -> nn.Module:
        """Return a layer, on meta where that is torch's default device just now."""
        modules = self.given(meta=torch.get_default_device().type == "meta").modules
        others = {id(parameter) for i, each in enumerate(modules) if i != index for parameter in each.parameters()}
        alone = all(id(parameter) not in others for parameter in modules[index].parameters())
        return modules[index] if alone else copy.deepcopy(modules[index])

    def loss(self, output: Any, targets: Any) -> torch.Tensor:
        """Return the loss, by what was made for real: what was made on meta may hold tensors without values."""
        return self._with_values().loss(output, targets)

    def count(self, targets: Any) -> float:
        """Return what the loss counts."""
        count = self._with_values().count
        assert count is not None
        return count(targets)

    def release(self, *, keep_loss: bool) -> None:
        """Let go of the layers that nobody took; a loss that is a method of the model keeps all of it alive."""
        self._made.clear()
        if not keep_loss:
            self._real = None

    def _with_values(self) -> Given:
        if self._real is None:
            self.given(meta=False)
        assert self._real is not None
        return self._real


def ties_between(modules: Sequence[nn.Module]) -> list[dict[str, str]]:
    """Return by layer which of its parameters are shared with other layers: path -> a name for the tie."""
    uses: dict[int, list[tuple[int, str]]] = {}
    for index, module in enumerate(modules):
        for path, parameter in module.named_parameters():
            uses.setdefault(id(parameter), []).append((index, path))
    found: list[dict[str, str]] = [{} for _ in modules]
    for places in uses.values():
        if len(places) > 1:
            name = f"tie.{places[0][0]}.{places[0][1]}"
            for index, path in places:
                found[index][path] = name
    return found


@dataclass(frozen=True, slots=True)
class Chain:
    """A user's model: its layers, `loss` and `count` as in `Given`.

    `on_meta` is what its function returned on meta; `release` lets go of what this rank has not taken.
    """

    layers: tuple[Layer, ...]
    loss: Loss
    count: Callable[[Any], float] | None
    on_meta: Given
    release: Release


def chain_of(make: Callable[[], Any], *, seed: int) -> Chain:
    """Return the chain of a model whose function with its options is `make`; its costs are not known yet.

    Raises
    ------
    WrongModelError
        It is nothing that can be trained.
    """
    whole = Whole(make, seed=seed)
    given = whole.given(meta=True)
    if given.builders is not None:
        real = whole.given(meta=False)  # cheap: nothing is built, but the loss has values
        assert real.builders is not None
        layers = [
            Layer(name, _checked(name, build), cost=1.0, block=True)
            for name, build in zip(real.names, real.builders, strict=True)
        ]
        return Chain(tuple(layers), real.loss, real.count, given, _nothing_to_release)
    ties = ties_between(given.modules)
    taken = [
        Layer(name, partial(whole.take, index), cost=1.0, block=True, ties=ties[index])
        for index, name in enumerate(given.names)
    ]
    count = None if given.count is None else whole.count
    return Chain(tuple(taken), whole.loss, count, given, whole.release)


def _nothing_to_release(*, keep_loss: bool) -> None:
    del keep_loss


def _checked(name: str, build: Builder) -> Builder:
    def checked() -> nn.Module:
        module = build()
        if not isinstance(module, nn.Module):
            raise WrongModelError(f"the function that builds {name} returned {type_of(module)}, not a module")
        return module

    return checked
