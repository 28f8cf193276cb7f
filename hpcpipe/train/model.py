"""The model of a job as what the runtime needs of it: a chain of layers, a loss and how much crosses between stages.

Each kind of `[model]` has one function here that makes it; nobody else asks for the kind.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hpcpipe.job import Job
from hpcpipe.job.models import Gpt, LanguageModel, Llama, OwnModel, Vlm
from hpcpipe.job.precision import BYTES
from hpcpipe.models import Layer, Load, VlmSizes, language_layers, layer_costs, text_loss, vlm_layers
from hpcpipe.models.tensor_parallel import Slices
from hpcpipe.models.user import Release
from hpcpipe.models.vlm_sliced import sliced_text_loss
from hpcpipe.train.batches import image_text_of, tokens_of_a_microbatch
from hpcpipe.train.losses import next_token_of, share_of_sum


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
    count
        Targets -> how many of them the loss counts. Where given, the loss is called with `data.Counted`, whose total it
        divides by; else it divides by the tokens of a step.
    total
        What a step counts, where that is known beforehand.
    notices
        What the user should know, each a sentence.
    release
        Lets go of what this rank has not built; to be called when its layers are built. None where all is built singly.
    costs
        Where micro-batches differ: (step, replica) -> of each one the multiply-adds of every layer's forward, known
        from sizes alone.
    """

    layers: Sequence[Layer]
    loss: Callable[[Any, Any], torch.Tensor]
    width: int
    recompute: str | Sequence[tuple[int, int]] = "none"
    random: bool = False
    count: Callable[[Any], float] | None = None
    total: float | None = None
    notices: Sequence[str] = ()
    release: Release | None = None
    costs: Callable[[int, int], list[list[float]]] | None = None
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


def _language(job: Job) -> Model:
    model = job.model
    assert isinstance(model, LanguageModel)
    loss, sliced_loss, count = next_token_of(job)
    return Model(
        layers=language_layers(model, seq_len=tokens_of_a_microbatch(job) // job.batch.microbatch_size),
        loss=loss,
        count=count,
        width=model.dim,
        recompute=model.recompute,
        random=isinstance(model, Gpt) and model.dropout > 0,
        sliced_loss=sliced_loss,
    )


def _own(job: Job) -> Model:
    from hpcpipe.train.own_model import own_model

    return own_model(job)


def _vlm(job: Job) -> Model:
    from hpcpipe.data import counted_tokens

    model, order = job.model, image_text_of(job)
    assert isinstance(model, Vlm)
    sizes = VlmSizes(**model.model_dump(exclude={"kind", "recompute"}))
    mean = Load(*(float(each.mean()) for each in order.records.loads))

    def costs(step: int, replica: int) -> list[list[float]]:
        loads = order.loads(step)
        return [
            layer_costs(sizes, Load(*(float(each[replica, microbatch]) for each in loads)))
            for microbatch in range(job.batch.microbatches)
        ]

    return Model(
        layers=vlm_layers(sizes, mean),
        loss=share_of_sum(text_loss),
        sliced_loss=lambda slices: share_of_sum(partial(sliced_text_loss, slices=slices)),
        count=counted_tokens,
        width=round(max(sizes.dim, sizes.encoder_dim * mean.patches / mean.tokens)),
        recompute=model.recompute,
        costs=costs,
    )


_MAKERS: dict[type, Callable[[Job], Model]] = {Gpt: _language, Llama: _language, Vlm: _vlm, OwnModel: _own}
