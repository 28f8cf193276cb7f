"""Parameter lists of public architectures, layer by layer, with the share of the computing that each layer has.

Nothing is computed with them: they say which gradients become final when, and how large these are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from hpcpipe.bench.dataparallel.bound import FLOAT_BYTES

Shape = tuple[int, ...]

MS_A_MILLION = 180 / 6.376
"""Milliseconds of forward and backward for a million parameters, in every model: those of `twelve_layers`, where two
ranks communicate 1.13 times as long as they compute at 1 Gbit/s. There overlap is worth the most."""

FORWARD_SHARE = 1 / 3
"""A backward takes twice as long as its forward: it has two products of the same size for each of the forward's."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters whose gradients become final together. `macs` are a sample's or token's multiplications, any unit."""

    shapes: Sequence[Shape]
    macs: float

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return sum(map(prod, self.shapes))


@dataclass(frozen=True, slots=True)
class Model:
    """Layers in the order of the forward; a parameter that is used twice is in the first of its layers.

    `factor` says how many times smaller every tensor is than published.
    """

    name: str
    layers: Sequence[Layer]
    factor: int = 1

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return sum(layer.numel for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of a gradient in fp32."""
        return FLOAT_BYTES * self.numel

    @property
    def tensors(self) -> int:
        """Return the number of parameter tensors."""
        return sum(len(layer.shapes) for layer in self.layers)

    @property
    def compute_ms(self) -> float:
        """Return how long a step's forward and backward take together."""
        return MS_A_MILLION * self.numel * 1e-6

    def forward_ms(self) -> list[float]:
        """Return how long the forward of each layer takes; its backward takes twice as long."""
        whole = sum(layer.macs for layer in self.layers)
        return [self.compute_ms * FORWARD_SHARE * layer.macs / whole for layer in self.layers]

    def scaled(self, factor: int) -> "Model":
        """Return the same tensors with so many times fewer elements each, one at least; matrices stay matrices."""
        layers = [replace(layer, shapes=[_smaller(shape, factor) for shape in layer.shapes]) for layer in self.layers]
        return replace(self, layers=layers, factor=factor)


def twelve_layers() -> Model:
    """Return 12 transformer layers of width 210 without biases at the queries, keys and values: 132 tensors."""
    width = 210
    matrices: list[Shape] = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    layer = Layer([*matrices, *[(width,)] * 6, (4 * width,)], macs=1.0)
    return Model("12 layers", [layer] * 12)


def resnet_50() -> Model:
    """Return ResNet-50 as in torchvision (He et al., arXiv 1512.03385; v1.5 has the stride in the 3x3 convolution)."""
    layers = [Layer([(64, 3, 7, 7), (64,), (64,)], macs=112 * 112 * 64 * 3 * 49)]
    inputs, side = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            first, before = block == 0, side
            if first and stage > 0:
                side //= 2
            kernels: list[tuple[Shape, int]] = [
                ((width, inputs, 1, 1), before),
                ((width, width, 3, 3), side),
                ((4 * width, width, 1, 1), side),
            ]
            kernels += [((4 * width, inputs, 1, 1), side)] if first else []
            shapes = [shape for kernel, _ in kernels for shape in (kernel, (kernel[0],), (kernel[0],))]
            layers.append(Layer(shapes, macs=sum(prod(kernel) * place * place for kernel, place in kernels)))
            inputs = 4 * width
    layers.append(Layer([(1000, 2048), (1000,)], macs=1000 * 2048))
    return Model("ResNet-50", layers)


def bert_base() -> Model:
    """Return BERT-base, uncased, with its pooler, as in transformers (Devlin et al., arXiv 1810.04805)."""
    width, words, positions = 768, 30522, 512
    embeddings: list[Shape] = [(words, width), (positions, width), (2, width), (width,), (width,)]
    shapes: list[Shape] = [(width, width), (width,)] * 4 + [(width,), (width,)]
    shapes += [(4 * width, width), (4 * width,), (width, 4 * width), (width,), (width,), (width,)]
    block = Layer(shapes, macs=12 * width**2 + 2 * positions * width)
    pooler = Layer([(width, width), (width,)], macs=0.0)
    return Model("BERT-base", [Layer(embeddings, macs=0.0), *[block] * 12, pooler])


def gpt_2() -> Model:
    """Return GPT-2 with 124 M parameters (Radford et al., 2019); its head shares the embedding's matrix."""
    width, words, positions = 768, 50257, 1024
    norm: list[Shape] = [(width,), (width,)]
    shapes: list[Shape] = [*norm, (width, 3 * width), (3 * width,), (width, width), (width,)]
    shapes += [*norm, (width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    block = Layer(shapes, macs=12 * width**2 + 2 * positions * width)
    return Model(
        "GPT-2",
        [Layer([(words, width), (positions, width)], macs=0.0), *[block] * 12, Layer(norm, macs=words * width)],
    )


MODELS: Mapping[str, Callable[[], Model]] = {
    "12-layers": twelve_layers,
    "resnet-50": lambda: resnet_50().scaled(4),
    "bert-base": lambda: bert_base().scaled(16),
    "gpt-2": lambda: gpt_2().scaled(16),
}
"""What is measured: at full size a step at 1 Gbit/s would take seconds."""


def _smaller(shape: Shape, factor: int) -> Shape:
    length = max(1, round(prod(shape) / factor))
    return (length,) if len(shape) == 1 else (1, length)
