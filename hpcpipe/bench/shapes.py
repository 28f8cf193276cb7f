"""What models look like once they are cut into stages: how the work of the stages and the bytes between them compare.

Only ratios, from published layer tables; how long a stage takes and what its messages weigh is the caller's choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise


@dataclass(frozen=True, slots=True)
class Shape:
    """Shares of the stages, with a mean of 1: work of a micro-batch, and bytes that the stage sends to the next.

    The last stage sends nothing; its share of the bytes is what it receives.
    """

    name: str
    work: tuple[float, ...]
    bytes_sent: tuple[float, ...]


def gpt(stages: int) -> Shape:
    """Return equal blocks of a decoder-only transformer: tokens times width between any two (GPT-2, GPT-3)."""
    return Shape("GPT", (1.0,) * stages, (1.0,) * stages)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Multiplications, values of the output, and those of the skip connections that begin or end here; relative."""

    work: float
    values: float
    opens: float = 0.0
    closes: float = 0.0


def _unet_layers(levels: int = 5) -> list[_Layer]:
    """Return the layers of U-Net (Ronneberger et al., arXiv 1505.04597, figure 1) with padded convolutions.

    A level halves the image's sides and doubles the channels, so its activations are half as large and its convolutions
    cost the same: 9 c_in c_out H W multiplications, 4 c_in c_out for each place of an up-convolution's input.
    """
    layers: list[_Layer] = []
    for level in range(levels):
        values = 0.5**level
        bottom = level == levels - 1
        layers.append(_Layer(9 * (1 / 64 if level == 0 else 0.5), values))
        layers.append(_Layer(9, values if bottom else values / 4, opens=0.0 if bottom else values))  # then pooled
    for level in reversed(range(levels - 1)):
        values = 0.5**level
        layers.append(_Layer(2, values))  # the up-convolution
        layers.append(_Layer(18, values, closes=values))  # of both halves of the concatenation
        layers.append(_Layer(9, values))
    return layers


def unet(stages: int) -> Shape:
    """Return a U-Net cut where the largest stage is smallest; skip connections travel along from stage to stage.

    Raises
    ------
    ValueError
        It has fewer layers than that.
    """
    layers = _unet_layers()
    if not 1 <= stages <= len(layers):
        raise ValueError(f"a U-Net of {len(layers)} layers cannot be cut into {stages} stages")
    crossing: list[float] = []
    open_skips = 0.0
    for layer in layers:
        open_skips += layer.opens - layer.closes
        crossing.append(layer.values + open_skips)
    work = [0.0]
    for layer in layers:
        work.append(work[-1] + layer.work)

    def cost(cuts: Sequence[int]) -> tuple[float, float]:
        ends = (0, *cuts, len(layers))
        return max(work[b] - work[a] for a, b in pairwise(ends)), sum(crossing[cut - 1] for cut in cuts)

    cuts = min(combinations(range(1, len(layers)), stages - 1), key=cost)
    ends = (0, *cuts, len(layers))
    sent = [crossing[cut - 1] for cut in cuts] or [0.0]
    return Shape("U-Net", _shares([work[b] - work[a] for a, b in pairwise(ends)]), _shares([*sent, sent[-1]][:stages]))


def _shares(values: Sequence[float]) -> tuple[float, ...]:
    mean = sum(values) / len(values)
    return tuple(value / mean if mean else 1.0 for value in values)


SHAPES = {"GPT": gpt, "U-Net": unet}
