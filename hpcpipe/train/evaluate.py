"""The loss over the samples that are held out: forwards alone through the same chunks, between two steps.

Each replica goes through its share; the sums of all ranks make one number, the same for every layout. Parameters,
random numbers and what the engine does are as if there had been no evaluation.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from hpcpipe.job import Job
from hpcpipe.runtime import Mesh, Waiting
from hpcpipe.runtime.channel import Memory
from hpcpipe.runtime.forward import ForwardPass
from hpcpipe.runtime.stage import Chunk
from hpcpipe.runtime.structure import map_tensors
from hpcpipe.train.batches import evaluation_of, tokens_per_step
from hpcpipe.train.layout import Layout
from hpcpipe.train.model import Model
from hpcpipe.train.precision import in_type, types_of

if TYPE_CHECKING:
    from hpcpipe.device.cuda import Cuda


class Sums(NamedTuple):
    """A rank's part of an evaluation: its losses summed, and how many targets they are over."""

    loss: float
    counted: float


class Evaluator:
    """Evaluates on one rank; collective over its pipeline, at creation too."""

    def __init__(
        self,
        job: Job,
        layout: Layout,
        model: Model,
        chunks: Sequence[Chunk],
        *,
        mesh: Mesh,
        memory: Memory,
        gpu: "Cuda | None" = None,
    ) -> None:
        from hpcpipe.data import Counted

        self._chunks = chunks
        self._modules = [module for chunk in chunks for module in chunk.layers]
        self._batches = evaluation_of(
            job,
            replica=mesh.place.replica,
            count=model.count or _count_all,
            inputs=any(chunk.first for chunk in chunks),
        )
        self._upload: Callable[[Any], Any] = _as_they_are if gpu is None else gpu.upload
        self._wrap: Callable[[Any], Any] = _as_they_are if model.count is None else lambda t: Counted(t, 1.0)
        self._scale = float(tokens_per_step(job)) if model.count is None else 1.0
        self._converted = partial(in_type, compute=types_of(job).compute)
        self._pass = ForwardPass(mesh, layout.schedule.placement, memory=memory)

    def evaluate(self, *, waiting: Waiting, moved: Callable[[], None]) -> Sums:
        """Go through the held-out samples and return this rank's sums, zeros but where the loss is."""
        losses: list[float] = []
        counts: list[float] = []

        def run(number: int, microbatch: int, value: Any) -> Any:
            chunk = self._chunks[number]
            entry = value
            if chunk.first:
                entry = map_tensors(map_tensors(self._batches.inputs(microbatch), self._converted), self._upload)
            output = chunk.call(chunk.layers, entry, before=None, again=nullcontext)
            if chunk.loss is None:
                return output
            targets = map_tensors(self._batches.targets(microbatch), self._upload)
            losses.append(float(chunk.loss(output, self._wrap(targets))) * self._scale)
            counts.append(self._batches.count(microbatch))
            return None

        with torch.no_grad(), torch.random.fork_rng(devices=[]), _evaluating(self._modules):
            self._pass.run(len(self._batches), run, waiting=waiting, moved=moved)
        return Sums(sum(losses), sum(counts))

    def free(self) -> None:
        """Free the communicator (collective)."""
        self._pass.free()


@contextmanager
def _evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Switch dropout and the like off, and afterwards each module back to what it was."""
    trained = [each for module in modules for each in module.modules() if each.training]
    for module in trained:
        module.training = False
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def _count_all(targets: torch.Tensor) -> float:
    return float(targets.numel())


def _as_they_are(value: Any) -> Any:
    return value
