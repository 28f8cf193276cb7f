"""A model that a function of the user's own returns, made for a job: called, looked through, its costs measured.

It is made once a process and job, however often it is asked for.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from hpcpipe.job import Job
from hpcpipe.job.datasets import OwnData, Text
from hpcpipe.job.factory import UserCodeError, call_factory, explain
from hpcpipe.job.models import OwnModel
from hpcpipe.job.rules import count as counted
from hpcpipe.job.words import show
from hpcpipe.models.probe import check_loss, look_through
from hpcpipe.models.user import WrongModelError, chain_of
from hpcpipe.train.batches import first_batch, open_data, samples_per_step, tokens_of_a_microbatch
from hpcpipe.train.losses import Loss, count_samples, share_of_mean, share_of_sum
from hpcpipe.train.model import Model

_MADE: dict[str, Model] = {}


def own_model(job: Job) -> Model:
    """Return the model of a job.

    Raises
    ------
    UserCodeError
        The function, what it returns, or the data cannot be used; the same on all ranks.
    """
    digest = job.sha256
    if digest not in _MADE:
        _MADE.clear()
        _MADE[digest] = _make(job)
    return _MADE[digest]


def problem_with(job: Job, *, opens_texts: bool = True) -> str:
    """Return what is wrong with the data files or with the user's own model or data, or nothing.

    Without `opens_texts` a text that may have to be tokenized is left alone: one rank does it for the others.
    """
    try:
        if opens_texts or not isinstance(job.data, Text):
            open_data(job)
        if isinstance(job.model, OwnModel):
            own_model(job)
        elif isinstance(job.data, OwnData):
            _first_batch(job)
    except UserCodeError as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"the data cannot be used: {error}"
    return ""


def _first_batch(job: Job) -> tuple[Any, Any]:
    try:
        return first_batch(job)
    except UserCodeError:
        raise
    except (OSError, ValueError) as error:
        raise UserCodeError(f"the first samples cannot be read: {error}") from error


def _make(job: Job) -> Model:
    model = job.model
    assert isinstance(model, OwnModel)
    where = f"[model] kind = {show(model.kind)}"
    batch = _first_batch(job)
    try:
        chain = chain_of(
            lambda: call_factory("model", model.kind, model.options, folder=model.folder), seed=job.run.seed
        )
        look = look_through(chain, batch, split=job.splits)
    except WrongModelError as error:
        raise UserCodeError(f"{where}: {error}") from error
    except UserCodeError:
        raise
    except Exception as error:
        raise UserCodeError(f"{where}: building its layers failed: {explain(error)}") from error
    tokens = tokens_of_a_microbatch(job)
    layers = [
        replace(layer, cost=seen.multiply_adds / tokens, kept=seen.kept / tokens)
        for layer, seen in zip(chain.layers, look.layers, strict=True)
    ]
    _check_sizes(job, where, len(layers), model.recompute)
    widest = max((seen.output_bytes for seen in look.layers[:-1]), default=0)
    share, samples = (share_of_mean, count_samples) if chain.count is None else (share_of_sum, chain.count)
    return Model(
        layers=layers,
        loss=share(_checking(chain.loss, where)),
        width=-(-widest // (4 * tokens)),
        recompute=model.recompute,
        random=True,  # nobody knows what its layers do
        count=samples,
        total=float(samples_per_step(job)) if chain.count is None else None,
        notices=[f"{where}: {notice}" for notice in look.notices],
        release=chain.release,
    )


def _check_sizes(job: Job, where: str, layers: int, recompute: str | Sequence[tuple[int, int]]) -> None:
    """Refuse what the job says of layers that the model does not have."""
    split, stages = job.parallel.split, job.placement.virtual_stages
    if stages > layers:
        raise UserCodeError(
            f"{where} has {counted(layers, 'layer')}, which {stages} stages (pipeline x chunks) cannot share; set "
            f"[parallel] pipeline to at most {layers // job.chunks or 1}, or let the function return smaller layers"
        )
    if isinstance(split, tuple) and sum(split) != layers:
        raise UserCodeError(
            f"{where} has {counted(layers, 'layer')}, but [parallel] split sums to {sum(split)}; make its entries sum "
            f'to {layers}, or write split = "auto"'
        )
    if not isinstance(recompute, str) and recompute[-1][1] >= layers:
        raise UserCodeError(
            f"{where} has {counted(layers, 'layer')}, numbered from 0, but [model] recompute names {recompute[-1][1]}"
        )


def _checking(loss: Loss, where: str) -> Loss:
    def checked(output: Any, targets: Any) -> torch.Tensor:
        value = loss(output, targets)
        try:
            check_loss(value)
        except WrongModelError as error:
            raise UserCodeError(f"{where}: {error}") from None
        return value

    return checked
