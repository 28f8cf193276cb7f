"""The model of a job as what the runtime needs of it: a chain of layers, a loss and how much crosses between stages.

Each kind of `[model]` has one function here that makes it; nobody else asks for the kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hpcpipe.job import Job
from hpcpipe.job.models import Gpt
from hpcpipe.job.precision import BYTES
from hpcpipe.models import Layer, gpt_layers, next_token_loss
from hpcpipe.models.gpt_sliced import sliced_next_token_loss
from hpcpipe.models.tensor_parallel import Slices
from hpcpipe.train.batches import tokens_of_a_microbatch, tokens_per_step


@dataclass(frozen=True, slots=True)
class Model:
    """A model and its loss.

    Parameters
    ----------
    loss
        (output of the last layer, targets) -> the micro-batch's share of the step's loss, a scalar.
    width
        Values a token that cross between stages; messages may be larger than this says, it is where buffers begin.
    recompute
        Blocks whose activations are computed again: `"none"`, `"all"` or ranges, first and last.
    sliced_loss
        (slices) -> the loss of outputs that are cut into tensor-parallel slices; None if the model cannot be cut.
    random
        Whether layers draw random numbers in training (dropout).
    """

    layers: Sequence[Layer]
    loss: Callable[[Any, Any], torch.Tensor]
    width: int
    recompute: str | Sequence[tuple[int, int]] = "none"
    random: bool = False
    sliced_loss: Callable[[Slices], Callable[[Any, Any], torch.Tensor]] | None = None

    def loss_over(self, slices: Slices | None) -> Callable[[Any, Any], torch.Tensor]:
        """Return the loss of this rank's part of the output."""
        if slices is None:
            return self.loss
        assert self.sliced_loss is not None, "a job whose model cannot be cut has one slice"
        return self.sliced_loss(slices)


def model_of(job: Job) -> Model:
    """Return the model of a job that trains; nothing is built yet."""
    return _MAKERS[type(job.model)](job)


def boundary_bytes(job: Job, model: Model) -> int:
    """Return the bytes of an activation that crosses between virtual stages."""
    return BYTES[job.precision.compute] * tokens_of_a_microbatch(job) * model.width


def _gpt(job: Job) -> Model:
    model = job.model
    assert isinstance(model, Gpt)
    layers = gpt_layers(
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        context=model.context,
        vocab_size=model.vocab_size,
        dropout=model.dropout,
        seq_len=tokens_of_a_microbatch(job) // job.batch.microbatch_size,
        tied=model.tied,
    )
    return Model(
        layers=layers,
        loss=partial(next_token_loss, tokens=tokens_per_step(job)),
        width=model.dim,
        recompute=model.recompute,
        random=model.dropout > 0,
        sliced_loss=lambda slices: partial(sliced_next_token_loss, tokens=tokens_per_step(job), slices=slices),
    )


_MAKERS: dict[type, Callable[[Job], Model]] = {Gpt: _gpt}
