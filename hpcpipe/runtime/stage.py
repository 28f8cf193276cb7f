"""The chunks of one rank run with torch: forward, backward, and weight gradients as work of their own where wanted.

Each micro-batch's parameter gradients are handed to a sink instead of being added where they are made, so that whoever
adds them can choose the order of addition. What chunks exchange is a tensor or a structure of tensors (structure.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from hpcpipe.device import Finished, Running
from hpcpipe.device.gpu import seed_generators
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.structure import map_tensors, tensors_of

Gradients = Sequence[torch.Tensor | None]


class Batches(Protocol):
    """The micro-batches of this rank's replica; the first stage asks for inputs, the last one for targets."""

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready."""

    def inputs(self, microbatch: int) -> Any:
        """Return the model's input."""

    def targets(self, microbatch: int) -> Any:
        """Return what the loss compares with."""


class Pending(Protocol):
    """The weight gradients of one backward that are still to be computed."""

    def compute(self, parameters: Sequence[torch.Tensor], folded: Gradients) -> Gradients:
        """Return the gradients of `parameters`; `folded` is what the backward has given for them already."""


class Call(Protocol):
    """How a chunk's layers are called one after the other."""

    def __call__(
        self,
        layers: Sequence[nn.Module],
        value: Any,
        *,
        before: Callable[[int], None] | None,
        again: Callable[[], AbstractContextManager[None]],
    ) -> Any:
        """Return the last one's value.

        `before` is called with each layer's position just before it, `again` entered around what is computed again in a
        backward.
        """


def call_once(
    layers: Sequence[nn.Module],
    value: Any,
    *,
    before: Callable[[int], None] | None,
    again: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Call layers whose activations are kept until the backward."""
    del again
    for position, layer in enumerate(layers):
        if before is not None:
            before(position)
        value = layer(value)
    return value


@dataclass(frozen=True, slots=True)
class Chunk:
    """The layers of one virtual stage, called one after the other.

    Parameters
    ----------
    parameters
        Those of the layers that are trained, each once; none where the layers have none.
    first
        Whether the chain begins here, with the model's input.
    loss
        Where the chain ends: (output, targets) -> the micro-batch's share of the step's loss, a scalar.
    sink
        Called once a gradient with the micro-batch and the gradients of `parameters`, in their order; None where a
        parameter was not used.
    seeds
        (step, position of the layer in the chunk, micro-batch) -> seed; None if no layer draws random numbers.
    call
        How the layers are called, where not just one after the other.
    scale
        What the loss is multiplied by in the backward of the step; the loss that is reported is not.
    """

    layers: Sequence[nn.Module]
    parameters: Sequence[nn.Parameter]
    first: bool
    loss: Callable[[Any, Any], torch.Tensor] | None
    sink: Callable[[int, Gradients], None]
    seeds: Callable[[int, int, int], int] | None = None
    call: Call = call_once
    scale: Callable[[], float] | None = None


class Launcher(Protocol):
    """A device that computes what it is given while this thread goes on."""

    def launch(self, label: str, body: Callable[[], Any], again: Sequence[tuple[Any, Any]]) -> Running:
        """Give it what `body` computes; `again` holds marks about what it computed again, once `body` has returned."""

    def begin_step(self) -> None:
        """Set what must be set once a step; it has nothing to do then."""

    def mark(self) -> Any:
        """Mark where it is when it comes to what it was given so far."""


class _Kept(NamedTuple):
    """What a forward leaves for its backward: the inputs and outputs that gradients flow through, in order."""

    entries: list[torch.Tensor]
    outputs: list[torch.Tensor]


class Stage:
    """All chunks of one rank.

    Only floating and complex tensors that depend on trained parameters get gradients; others cross between stages
    without. The gradient of a chunk's input is one tensor where one wants a gradient, else a tuple with one entry for
    each that does; None where it did not count for the loss.

    Parameters
    ----------
    recording
        Where weight gradients are tasks of their own (W): what records them in a backward, so that B gives the input
        gradient and they are computed and handed over later.
    announce
        Called with the step and each task before it runs.
    device
        What computes while this thread goes on; None where it is this thread.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        *,
        batches: Batches | None,
        recording: Callable[[], AbstractContextManager[Pending]] | None = None,
        announce: Callable[[int, Task], None] | None = None,
        device: Launcher | None = None,
    ) -> None:
        self._device = device
        self._mark: Callable[[], Any] = now if device is None else device.mark
        self._announce = announce
        self._chunks = chunks
        self._batches = batches
        self._recording = recording
        self._stash: dict[tuple[int, int], _Kept] = {}
        self._pending: dict[tuple[int, int], tuple[Pending | None, Gradients]] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self._again: list[tuple[Any, Any]] = []

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
        if self._device is not None:
            self._device.begin_step()
        if self._batches is not None:
            self._batches.load(step)
        self._losses.clear()

    def start(self, step: int, task: Task, received: Any) -> Running:
        """Run an F, B or W in the calling thread, where it is done on return, or give it to the device."""
        if self._announce is not None:
            self._announce(step, task)
        again: list[tuple[Any, Any]] = []
        self._again = again
        if self._device is None:
            return Finished(self._compute(step, task, received), again=again)
        return self._device.launch(f"{task} step {step}", lambda: self._compute(step, task, received), again)

    def losses(self) -> dict[int, float]:
        """Return the losses of the step so far by micro-batch; none but on the last stage."""
        if not self._losses:
            return {}
        values = torch.stack(list(self._losses.values())).tolist()  # one copy from a device, not one for each
        return dict(zip(self._losses, values, strict=True))

    def loss(self) -> float:
        """Return the step's loss so far, added in micro-batch order in double precision (0 but on the last stage)."""
        losses = self.losses()
        return sum(losses[microbatch] for microbatch in sorted(losses))

    def _compute(self, step: int, task: Task, received: Any) -> Any:
        """Return what the task that follows in the chain needs."""
        kind, microbatch, number = task
        chunk = self._chunks[number]
        if kind is Kind.F:
            return self._forward(step, microbatch, number, chunk, received)
        if kind is Kind.B:
            return self._backward(microbatch, number, chunk, received)
        pending, gradients = self._pending.pop((microbatch, number))
        chunk.sink(microbatch, gradients if pending is None else pending.compute(chunk.parameters, gradients))
        return None

    def _forward(self, step: int, microbatch: int, number: int, chunk: Chunk, received: Any) -> Any:
        """Return what the next virtual stage needs, or None at the end of the chain."""
        if chunk.first:
            assert self._batches is not None
            entry, entries = self._batches.inputs(microbatch), []
        else:
            entry = map_tensors(received, _leaf)
            entries = _wanting_gradients(entry)
        before = None if chunk.seeds is None else partial(_seed, chunk.seeds, step, microbatch)
        value = chunk.call(chunk.layers, entry, before=before, again=self._computing_again)
        if chunk.loss is not None:
            assert self._batches is not None
            loss = chunk.loss(value, self._batches.targets(microbatch))
            self._losses[microbatch] = loss.detach()
            self._stash[microbatch, number] = _Kept(entries, [loss] if loss.requires_grad else [])
            return None
        if not chunk.first and len(self._chunks) > 1:
            value = _without_memory_of(tensors_of(entry), value)
        self._stash[microbatch, number] = _Kept(entries, _wanting_gradients(value))
        return value

    def _backward(self, microbatch: int, number: int, chunk: Chunk, gradient: Any) -> Any:
        """Return the gradient of the chunk's input, or None at the begin of the chain."""
        entries, outputs = self._stash.pop((microbatch, number))
        given: Gradients = gradient if isinstance(gradient, tuple) else (gradient,) * len(outputs)
        if chunk.loss is not None and chunk.scale is not None:
            given = [torch.full_like(output, chunk.scale()) for output in outputs]
        if chunk.loss is None and any(each is None for each in given):
            outputs = [output for output, each in zip(outputs, given, strict=True) if each is not None]
            given = [each for each in given if each is not None]
        inputs = [*entries, *chunk.parameters]
        pending, gradients = self._differentiate(outputs, inputs, given)
        of_entries, of_parameters = gradients[: len(entries)], gradients[len(entries) :]
        if self._recording is None:
            chunk.sink(microbatch, of_parameters)
        else:
            self._pending[microbatch, number] = pending, of_parameters
        if chunk.first:
            return None
        if len(self._chunks) > 1:
            of_entries = _without_memory_of([each for each in given if each is not None], of_entries)
        return of_entries[0] if len(of_entries) == 1 else tuple(of_entries)

    def _differentiate(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], gradients: Gradients
    ) -> tuple[Pending | None, list[torch.Tensor | None]]:
        """Return the gradients of `inputs`, and what is put off; None where no output depends on one."""
        if not outputs or not inputs:
            return None, [None] * len(inputs)
        if self._recording is None:
            return None, list(torch.autograd.grad(outputs, inputs, gradients, allow_unused=True))
        with self._recording() as pending:
            return pending, list(torch.autograd.grad(outputs, inputs, gradients, allow_unused=True))

    @contextmanager
    def _computing_again(self) -> Iterator[None]:
        begin = self._mark()
        try:
            yield
        finally:
            self._again.append((begin, self._mark()))


def _wanting_gradients(value: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_of(value) if tensor.requires_grad]


def _seed(seeds: Callable[[int, int, int], int], step: int, microbatch: int, position: int) -> None:
    seed_generators(seeds(step, position, microbatch))


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new leaf of the graph with the tensor's memory: no hook or graph of another use hangs on it."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _without_memory_of(received: Sequence[torch.Tensor], value: Any) -> Any:
    """Return the value with copies of what lies in the memory of something received.

    A chunk may hand on what it was given. Where the next chunk is on this rank too, it may need it longer (for a late
    weight gradient) than the slot that it lies in is kept.
    """
    slots = {tensor.untyped_storage().data_ptr() for tensor in received}

    def own(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or tensor.untyped_storage().data_ptr() not in slots:
            return tensor
        return tensor.clone()

    return map_tensors(value, own)
