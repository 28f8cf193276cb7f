"""Add the micro-batches' gradients into the fusion buckets, in an order that timing does not change.

A backward may run in any order; with `ordered` its gradients are held until those of all earlier micro-batches are in,
so the sum has the same bits under every schedule. `arrival` adds at once and holds nothing.
"""

from collections.abc import Callable, Sequence

import torch

Gradients = Sequence[torch.Tensor | None]


class Accumulator:
    """Hands each micro-batch's gradients to `add(gradients, first)`, where `first` starts a new sum."""

    def __init__(self, add: Callable[[Gradients, bool], None], *, microbatches: int, ordered: bool) -> None:
        self._add = add
        self.microbatches = microbatches
        """Of a step; it may change between two."""
        self._ordered = ordered
        self._held: dict[int, Gradients] = {}
        self._added = 0
        self.peak_held = 0
        self.watch: Callable[[int, Gradients], None] | None = None
        """Shown every micro-batch's gradients when they come, where somebody looks for something in them."""

    def __call__(self, microbatch: int, gradients: Gradients) -> None:
        """Take the gradients of one micro-batch."""
        if self.watch is not None:
            self.watch(microbatch, gradients)
        if not self._ordered:
            self._give(gradients)
            return
        self._held[microbatch] = gradients
        while self._added in self._held:
            self._give(self._held.pop(self._added))
        self.peak_held = max(self.peak_held, len(self._held))

    def _give(self, gradients: Gradients) -> None:
        self._add(gradients, self._added == 0)
        self._added = (self._added + 1) % self.microbatches
