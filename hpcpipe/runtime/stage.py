"""The chunks of one rank run with torch: forward, backward, and weight gradients as work of their own where wanted.

Each micro-batch's parameter gradients are handed to a sink instead of being added where they are made, so that whoever
adds them can choose the order of addition.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from hpcpipe.device import Finished
from hpcpipe.plan import Kind, Task

Gradients = Sequence[torch.Tensor | None]


class Batches(Protocol):
    """The micro-batches of this rank's replica; the first stage asks for inputs, the last one for targets."""

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready."""

    def inputs(self, microbatch: int) -> torch.Tensor:
        """Return the model's input."""

    def targets(self, microbatch: int) -> torch.Tensor:
        """Return what the loss compares with."""


class Pending(Protocol):
    """The weight gradients of one backward that are still to be computed."""

    def compute(self, parameters: Sequence[torch.Tensor], folded: Gradients) -> Gradients:
        """Return the gradients of `parameters`; `folded` is what the backward has given for them already."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The layers of one virtual stage, called one after the other.

    Parameters
    ----------
    parameters
        Those of the layers that are trained, each once.
    first
        Whether the chain begins here, with the model's input.
    loss
        Where the chain ends: (output, targets) -> the micro-batch's share of the step's loss, a scalar.
    sink
        Called once a gradient with the micro-batch and the gradients of `parameters`, in their order; None where a
        parameter was not used.
    seeds
        (step, position of the layer in the chunk, micro-batch) -> seed; None if no layer draws random numbers.
    """

    layers: Sequence[nn.Module]
    parameters: Sequence[nn.Parameter]
    first: bool
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None
    sink: Callable[[int, Gradients], None]
    seeds: Callable[[int, int, int], int] | None = None


class Stage:
    """All chunks of one rank.

    Parameters
    ----------
    recording
        Where weight gradients are tasks of their own (W): what records them in a backward, so that B gives the input
        gradient and they are computed and handed over later.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        batches: Batches | None,
        recording: Callable[[], AbstractContextManager[Pending]] | None = None,
    ) -> None:
        self._chunks = chunks
        self._batches = batches
        self._recording = recording
        self._stash: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._pending: dict[tuple[int, int], tuple[Pending, Gradients]] = {}
        self._losses: dict[int, torch.Tensor] = {}

    @property
    def has_data(self) -> bool:
        """Whether this stage reads inputs or targets."""
        return self._batches is not None

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters of all chunks."""
        return [parameter for chunk in self._chunks for parameter in chunk.parameters]

    def load(self, step: int) -> None:
        """Read the step's micro-batches."""
        if self._batches is not None:
            self._batches.load(step)
        self._losses.clear()

    def start(self, step: int, task: Task, received: torch.Tensor | None) -> Finished:
        """Run an F, B or W in the calling thread; it is done on return."""
        kind, microbatch, number = task
        chunk = self._chunks[number]
        if kind is Kind.F:
            return Finished(self._forward(step, microbatch, number, chunk, received))
        if kind is Kind.B:
            return Finished(self._backward(microbatch, number, chunk, received))
        pending, folded = self._pending.pop((microbatch, number))
        chunk.sink(microbatch, pending.compute(chunk.parameters, folded))
        return Finished()

    def loss(self) -> float:
        """Return the step's loss so far, added in micro-batch order in double precision (0 but on the last stage)."""
        return sum(float(self._losses[microbatch]) for microbatch in sorted(self._losses))

    def _forward(
        self, step: int, microbatch: int, number: int, chunk: Chunk, received: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return what the next virtual stage needs, or None at the end of the chain."""
        if chunk.first:
            assert self._batches is not None
            value = entry = self._batches.inputs(microbatch)
        else:
            assert received is not None
            value = entry = received.detach().requires_grad_(received.is_floating_point())
        for position, layer in enumerate(chunk.layers):
            if chunk.seeds is not None:
                torch.manual_seed(chunk.seeds(step, position, microbatch))
            value = layer(value)
        if chunk.loss is None:
            self._stash[microbatch, number] = entry, value
            return value.detach()
        assert self._batches is not None
        loss = chunk.loss(value, self._batches.targets(microbatch))
        self._losses[microbatch] = loss.detach()
        self._stash[microbatch, number] = entry, loss
        return None

    def _backward(
        self, microbatch: int, number: int, chunk: Chunk, gradient: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the gradient of the chunk's input, or None at the begin of the chain."""
        entry, output = self._stash.pop((microbatch, number))
        inputs = [*chunk.parameters] if chunk.first else [entry, *chunk.parameters]
        if self._recording is None:
            gradients: Gradients = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
        else:
            with self._recording() as pending:
                gradients = torch.autograd.grad(output, inputs, gradient, allow_unused=True)
        input_gradient = None
        if not chunk.first:
            input_gradient, *gradients = gradients
        if self._recording is None:
            chunk.sink(microbatch, gradients)
        else:
            self._pending[microbatch, number] = pending, gradients
        return input_gradient
