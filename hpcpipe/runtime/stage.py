"""One stage's layers run with torch: forward, and backward with a true hand-over of the input gradient.

Each micro-batch's parameter gradients are handed to a sink instead of being added where they are made, so that whoever
adds them can choose the order of addition.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import nn


class Batches(Protocol):
    """The micro-batches of this rank's replica; the first stage asks for inputs, the last one for targets."""

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready."""

    def inputs(self, microbatch: int) -> torch.Tensor:
        """Return the model's input."""

    def targets(self, microbatch: int) -> torch.Tensor:
        """Return what the loss compares with."""


class Stage:
    """The layers of one pipeline stage.

    Parameters
    ----------
    layers
        Modules called one after the other.
    parameters
        Those of the layers that are trained, each once.
    loss
        On the last stage: (output, targets) -> the micro-batch's share of the step's loss, a scalar.
    sink
        Called once a backward with the micro-batch and the gradients of `parameters`, in their order; None where a
        parameter was not used.
    seeds
        (step, position of the layer in this stage, micro-batch) -> seed; None if no layer draws random numbers.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        parameters: Sequence[nn.Parameter],
        batches: Batches | None,
        first: bool,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
        sink: Callable[[int, Sequence[torch.Tensor | None]], None],
        seeds: Callable[[int, int, int], int] | None = None,
    ) -> None:
        self._layers = nn.ModuleList(layers)
        self._batches = batches
        self._first = first
        self._loss = loss
        self._sink = sink
        self._seeds = seeds
        self._stash: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self.parameters = list(parameters)

    @property
    def has_data(self) -> bool:
        """Whether this stage reads inputs or targets."""
        return self._batches is not None

    def load(self, step: int) -> None:
        """Read the step's micro-batches."""
        if self._batches is not None:
            self._batches.load(step)
        self._losses.clear()

    def forward(self, step: int, microbatch: int, received: torch.Tensor | None) -> torch.Tensor | None:
        """Run the layers; return what the next stage needs, or None on the last stage."""
        if received is None:
            assert self._batches is not None
            value = entry = self._batches.inputs(microbatch)
        else:
            value = entry = received.detach().requires_grad_(received.is_floating_point())
        for position, layer in enumerate(self._layers):
            if self._seeds is not None:
                torch.manual_seed(self._seeds(step, position, microbatch))
            value = layer(value)
        if self._loss is None:
            self._stash[microbatch] = entry, value
            return value.detach()
        assert self._batches is not None
        loss = self._loss(value, self._batches.targets(microbatch))
        self._losses[microbatch] = loss.detach()
        self._stash[microbatch] = entry, loss
        return None

    def backward(self, microbatch: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Run the backward of one micro-batch; return the gradient of its input, or None on the first stage."""
        entry, output = self._stash.pop(microbatch)
        inputs = self.parameters if self._first else [entry, *self.parameters]
        gradients = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
        if self._first:
            self._sink(microbatch, gradients)
            return None
        self._sink(microbatch, gradients[1:])
        return gradients[0]

    def loss(self) -> float:
        """Return the step's loss so far, added in micro-batch order in double precision (0 but on the last stage)."""
        return sum(float(self._losses[microbatch]) for microbatch in sorted(self._losses))
