"""A layer as the pipeline sees it: how to build it, what it costs, where it stands in the whole model.

A stage builds only its own layers; the whole model never exists in one place unless the pipeline has one stage.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from hpcpipe.models.tensor_parallel import Slices
from hpcpipe.plan import Placement, balanced_split, derive_seed, even_stages


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: `cost` in multiply-adds per token of its forward; `block`: whether `[parallel].split` counts it.

    `ties` names parameters, by their path in the module, that are one with those of other layers under the same name.
    `kept` is how many values a token its forward leaves for its backward, for predictions. `load` fills all parameters
    of the module from files; without it they begin with drawn values. `slice` keeps one tensor-parallel slice of a
    built module; without it the layer is whole on every slice.
    """

    name: str
    build: Callable[[], nn.Module]
    cost: float
    block: bool
    ties: Mapping[str, str] = field(default_factory=dict)
    kept: float = 0.0
    load: Callable[[nn.Module], None] | None = None
    slice: Callable[[nn.Module, Slices], None] | None = None


def cut(layers: Sequence[Layer], placement: Placement, split: str | Sequence[int]) -> list[range]:
    """Return which layers each virtual stage holds.

    Layers before the first block go with the first one, those after the last block with the last. `split` is `"auto"`
    (the dearest stage as cheap as possible) or the number of blocks of every virtual stage.
    """
    blocks = [index for index, layer in enumerate(layers) if layer.block]
    before = sum(layer.cost for layer in layers[: blocks[0]])
    after = sum(layer.cost for layer in layers[blocks[-1] + 1 :])
    sizes: Sequence[int]
    if isinstance(split, str):
        costs, pieces = [layers[i].cost for i in blocks], placement.virtual_stages
        sizes = balanced_split(costs, pieces, before=before, after=after)
        owners = [placement.owner(piece)[0] for piece in range(pieces)]
        sizes = even_stages(sizes, costs, owners, before=before, after=after)
    else:
        sizes = split
    ranges, begin = [], 0
    for piece, size in enumerate(sizes):
        end = len(layers) if piece == len(sizes) - 1 else begin + size + (blocks[0] if piece == 0 else 0)
        ranges.append(range(begin, end))
        begin = end
    return ranges


def recomputed(layers: Sequence[Layer], piece: range, setting: str | Sequence[tuple[int, int]]) -> list[range]:
    """Return the positions in a piece whose activations are computed again; ranges that a cut divides come in parts.

    `setting` is `"none"`, `"all"` (each block by itself) or ranges of blocks, first and last.
    """
    blocks = [index for index, layer in enumerate(layers) if layer.block]
    if isinstance(setting, str):
        setting = [(number, number) for number in range(len(blocks))] if setting == "all" else []
    found = []
    for first, last in setting:
        begin, end = max(blocks[first], piece.start), min(blocks[last] + 1, piece.stop)
        if begin < end:
            found.append(range(begin - piece.start, end - piece.start))
    return found


def build(layers: Sequence[Layer], which: range, *, seed: int, slices: Slices | None = None) -> list[nn.Module]:
    """Build some of the layers; a layer's initial parameters depend on the seed and its name, not on the split.

    A tied parameter begins everywhere with the values of its first use, which is built for that if it is elsewhere;
    layers that are loaded get theirs from the files. With `slices` each layer is built whole, so that its parameters
    are those of the whole model, and cut.
    """
    modules = {index: _build(layers[index], seed, slices) for index in which}
    for tie, uses in ties_of(layers).items():
        (origin, path), *others = uses
        mine = [(index, there) for index, there in others if index in modules and layers[index].load is None]
        if mine:
            source = modules[origin] if origin in modules else _build(layers[origin], seed, slices)
            for index, there in mine:
                _copy(tie, source.get_parameter(path), modules[index].get_parameter(there))
    return list(modules.values())


def ties_of(layers: Sequence[Layer]) -> dict[str, list[tuple[int, str]]]:
    """Return for every tie where it is used, in the order of the chain: number of the layer and path in its module."""
    found: dict[str, list[tuple[int, str]]] = {}
    for index, layer in enumerate(layers):
        for path, tie in layer.ties.items():
            found.setdefault(tie, []).append((index, path))
    return found


def outline(layers: Sequence[Layer], which: range) -> list[nn.Module]:
    """Return some of the layers with shapes and no memory, for counting; nothing is drawn or loaded."""
    with torch.device("meta"), _Undrawn():
        return [layers[index].build() for index in which]


class _Undrawn(TorchFunctionMode):
    """Leaves tensors without memory as they are where first values would be drawn into them.

    Without it torch imports its compiler, a second or more, to draw nothing.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, unless it would fill a tensor without memory."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init" or func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


def _build(layer: Layer, seed: int, slices: Slices | None) -> nn.Module:
    if layer.load is not None:
        with torch.device("meta"), _Undrawn():  # nothing is drawn that would be overwritten
            module = layer.build()
        layer.load(module.to_empty(device="cpu"))
        return _cut_out(layer, module, slices)
    torch.manual_seed(derive_seed(seed, "init", layer.name))
    return _cut_out(layer, layer.build(), slices)


def _cut_out(layer: Layer, module: nn.Module, slices: Slices | None) -> nn.Module:
    if slices is not None and layer.slice is not None:
        layer.slice(module, slices)
    return module


def _copy(tie: str, source: nn.Parameter, target: nn.Parameter) -> None:
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(
            f"the parameters tied as {tie!r} differ: {tuple(source.shape)} {source.dtype} and {tuple(target.shape)} "
            f"{target.dtype}"
        )
    with torch.no_grad():
        target.copy_(source)
