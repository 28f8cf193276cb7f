"""How a loss becomes a micro-batch's share of the step's, so that shares add up to one mean whatever the layout.

The divisor is what the whole global batch counts: known from the sizes, or counted over the step's targets, which every
rank that needs it can read because the data is a function of the step.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hpcpipe.job import Job
from hpcpipe.job.datasets import DataFile
from hpcpipe.models import next_token_loss
from hpcpipe.models.gpt_sliced import sliced_next_token_loss
from hpcpipe.models.tensor_parallel import Slices
from hpcpipe.train.batches import tokens_per_step

if TYPE_CHECKING:
    from hpcpipe.data import Counted

Loss = Callable[[Any, Any], torch.Tensor]
Count = Callable[[Any], float]


def next_token_of(job: Job) -> tuple[Loss, Callable[[Slices], Loss], Count | None]:
    """Return the loss of a language model on a job's data, that of its slices, and what counts its targets, if asked.

    They are counted where some may be ignored.
    """
    if isinstance(job.data, DataFile):
        tokens = tokens_per_step(job)
        return partial(next_token_loss, tokens=tokens), partial(_sliced, tokens=tokens), None
    from hpcpipe.data import counted_tokens

    whole = share_of_sum(partial(next_token_loss, tokens=1))
    return whole, lambda slices: share_of_sum(_sliced(slices, tokens=1)), counted_tokens


def _sliced(slices: Slices, tokens: int) -> Loss:
    return partial(sliced_next_token_loss, tokens=tokens, slices=slices)


def share_of_sum(loss: Loss) -> Loss:
    """Return a loss over counted targets from one that sums."""

    def share(output: Any, targets: "Counted") -> torch.Tensor:
        return loss(output, targets.targets) / targets.total

    return share


def share_of_mean(loss: Loss) -> Loss:
    """Return a loss over counted targets from one that is the mean over its samples, each of the same weight."""

    def share(output: Any, targets: "Counted") -> torch.Tensor:
        return loss(output, targets.targets) * (count_samples(targets.targets) / targets.total)

    return share


def count_samples(targets: Any) -> float:
    """Return how many samples a micro-batch has: the first size of the first tensor of its targets.

    Raises
    ------
    TypeError
        It has none.
    """
    value = targets
    while isinstance(value, list | tuple | dict) and value:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    if isinstance(value, torch.Tensor) and value.dim():
        return float(value.shape[0])
    raise TypeError(
        f"how many samples a micro-batch has cannot be told from its targets ({type(targets).__name__}); let the "
        "first tensor in them have one row a sample, or give the loss as a pair of functions, one that sums and one "
        "that counts"
    )
