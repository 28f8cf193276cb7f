"""Activation checkpointing: keep a range's input instead of its activations, and run its forward again in the backward.

The range is torch.utils.checkpoint's non-reentrant kind, which keeps the random state too; it knows nothing of stages.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.utils.checkpoint import checkpoint


def run_layers(
    layers: Sequence[Callable[[Any], Any]],
    value: Any,
    *,
    recompute: Sequence[range] = (),
    before: Callable[[int], None] | None = None,
    again: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Any:
    """Call the layers one after the other and return the last one's value.

    Parameters
    ----------
    recompute
        Ranges of positions in `layers`, ascending and apart from each other: of each, only its input is kept until the
        backward. `[range(0, 4)]` keeps least and needs all four layers' activations at once in the backward;
        `[range(0, 2), range(2, 4)]` keeps one value more and needs those of two.
    before
        Called with a layer's position just before the layer, in a repeated forward too; draws that depend on a seed set
        here, or on torch's random state as the range found it, are the same both times.

    again
        Entered around every repeated forward of a range, so that its time can be told from the backward's.

    The gradients have the bits of a backward without recomputation, in a recording too. There the pending weight
    gradients hold what the repeated forward made, so memory is saved between F and B, not between B and W.

    Raises
    ------
    ValueError
        If a range is empty, has a step, leaves `layers` or meets the one before it.
    """
    begin = 0
    for part in recompute:
        if part.step != 1 or not begin <= part.start < part.stop <= len(layers):
            raise ValueError(
                f"Layers {part.start} to {part.stop} (step {part.step}) cannot be recomputed: of {len(layers)} "
                f"layers a range must begin at {begin} or later and hold at least one."
            )
        value = _run(layers, value, range(begin, part.start), before)
        value = checkpoint(_Repeatable(again), layers, value, part, before, use_reentrant=False)
        begin = part.stop
    return _run(layers, value, range(begin, len(layers)), before)


def _run(
    layers: Sequence[Callable[[Any], Any]], value: Any, positions: range, before: Callable[[int], None] | None
) -> Any:
    for position in positions:
        if before is not None:
            before(position)
        value = layers[position](value)
    return value


class _Repeatable:
    """`_run` that knows the second time from the first."""

    def __init__(self, again: Callable[[], AbstractContextManager[None]]) -> None:
        self._again = again
        self._first = True

    def __call__(self, *arguments: Any) -> Any:
        if self._first:
            self._first = False
            return _run(*arguments)
        with self._again():
            return _run(*arguments)
