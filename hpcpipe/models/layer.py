"""A layer as the pipeline sees it: how to build it, what it costs, where it stands in the whole model.

A stage builds only its own layers; the whole model never exists in one place unless the pipeline has one stage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hpcpipe.plan import balanced_split, derive_seed


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: `cost` in multiply-adds per token of its forward; `block`: whether `[parallel].split` counts it."""

    name: str
    build: Callable[[], nn.Module]
    cost: float
    block: bool


def cut(layers: Sequence[Layer], stages: int, split: str | Sequence[int]) -> list[range]:
    """Return which layers each stage holds.

    Layers before the first block go with the first stage, those after the last one with the last. `split` is `"auto"`
    (the dearest stage as cheap as possible) or the number of blocks of every stage.
    """
    blocks = [index for index, layer in enumerate(layers) if layer.block]
    before = sum(layer.cost for layer in layers[: blocks[0]])
    after = sum(layer.cost for layer in layers[blocks[-1] + 1 :])
    sizes: Sequence[int]
    if isinstance(split, str):
        sizes = balanced_split([layers[i].cost for i in blocks], stages, before=before, after=after)
    else:
        sizes = split
    ranges, begin = [], 0
    for stage, size in enumerate(sizes):
        end = len(layers) if stage == stages - 1 else begin + size + (blocks[0] if stage == 0 else 0)
        ranges.append(range(begin, end))
        begin = end
    return ranges


def build(layers: Sequence[Layer], which: range, *, seed: int) -> list[nn.Module]:
    """Build some of the layers; a layer's initial parameters depend on the seed and its name, not on the split."""
    modules = []
    for index in which:
        torch.manual_seed(derive_seed(seed, "init", layers[index].name))
        modules.append(layers[index].build())
    return modules
