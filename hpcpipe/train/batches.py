"""The data of a job as micro-batches, and how many tokens they hold; each kind of `[data]` is told apart here only.

Nothing is read and torch is not needed until micro-batches are asked for. What a step gets is a function of the job and
the step: there is no other state.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hpcpipe.job import Job
from hpcpipe.job.datasets import DataFile, ImageText, OwnData, Samples, Stored, Text, Tokens
from hpcpipe.job.factory import UserCodeError, call_factory
from hpcpipe.job.models import Vlm

if TYPE_CHECKING:
    from pathlib import Path

    from hpcpipe.data import Batches, Evaluation, Geometry, ImageRecords, ImageTextOrder, Source
    from hpcpipe.data.batches import Count


def batches_of(
    job: Job, *, replica: int, inputs: bool = True, count: "Count | None" = None, total: float | None = None
) -> "Batches":
    """Return the micro-batches of one replica; without `inputs` only targets will be asked for.

    With `count` targets come as `data.Counted`; `total` is what a step counts, where that is known beforehand.

    Raises
    ------
    OSError, ValueError
        The data cannot be read or are too few.
    """
    if isinstance(job.data, ImageText):
        from hpcpipe.data import image_text_batches

        return image_text_batches(image_text_of(job), replica=replica, steps=job.run.steps, images=inputs)
    from hpcpipe.data import Batches, Deal, Order

    source, trained, _ = _sources(job)
    order = Order(trained, seed=job.data.seed)  # type: ignore[union-attr]
    sizes = job.batch
    deal = Deal(
        order,
        microbatches=sizes.microbatches,
        size=sizes.microbatch_size,
        replica=replica,
        replicas=job.parallel.data,
    )
    known = None if total is None else lambda _step: total
    return Batches(source, deal, steps=job.run.steps, count=count, total=known)


def evaluation_of(job: Job, *, replica: int, count: "Count", inputs: bool = True) -> "Evaluation":
    """Return one replica's micro-batches of every evaluation; `count` says how many targets a loss counts.

    Without `inputs` only targets will be asked for.

    Raises
    ------
    OSError, ValueError
        The data cannot be read or are too few.
    """
    from hpcpipe.data import Evaluation, evaluation_deal

    data = job.data
    assert isinstance(data, Samples)
    source, trained, held = _sources(job, inputs=inputs)
    first = trained
    if isinstance(data, Stored) and data.eval_path:
        source, first = _OPENERS[type(data)](job, data.resolve(data.eval_path), inputs), 0
        held = len(source)
    wanted = min(held, data.eval_samples or held)
    size = data.eval_microbatch_size or job.batch.microbatch_size
    deal = evaluation_deal(first, wanted, size=size, replica=replica, replicas=job.parallel.data)
    return Evaluation(source, deal, count=count)


def open_data(job: Job) -> None:
    """Open the files of a job's data, to find what is wrong with them before anything is built.

    Raises
    ------
    OSError, ValueError
        The data cannot be read or are too few.
    """
    if isinstance(job.data, DataFile):
        _sources(job)
        if job.data.eval_path:
            _OPENERS[type(job.data)](job, job.data.resolve(job.data.eval_path), True)


def evaluates_after(job: Job, step: int) -> bool:
    """Return whether the held-out samples are gone through when a step is done."""
    data = job.data
    if not isinstance(data, Samples) or not data.evaluates:
        return False
    done = step + 1
    return done == job.run.steps or (data.eval_every > 0 and done % data.eval_every == 0)


def first_batch(job: Job) -> tuple[Any, Any]:
    """Return the inputs and targets of a micro-batch, for what a model makes of their shapes.

    Raises
    ------
    OSError, ValueError
        The data cannot be read.
    """
    import numpy as np
    import torch

    size = job.batch.microbatch_size
    if isinstance(job.data, DataFile):
        tokens = torch.zeros(size, job.data.seq_len, dtype=torch.int64)
        return tokens, tokens
    source, trained, _ = _sources(job)
    _LOOKED_AT.clear()
    _LOOKED_AT[job.sha256] = source
    return source.read(np.arange(size) % trained)


_LOOKED_AT: "dict[str, Source]" = {}
"""The source of the job whose first batch was asked for, so that making it is paid once; nobody reads it meanwhile."""


def problem_of_records(job: Job) -> str:
    """Return what is wrong with the records of a job where that shows only inside of them, or nothing."""
    if not isinstance(job.data, ImageText):
        return ""
    try:
        image_text_of(job)
        if job.data.eval_path:
            _image_text(job, job.data.resolve(job.data.eval_path), inputs=False)
    except OSError as error:
        return f"{error.filename or job.data.path} cannot be read: {error.strerror or error}"
    except ValueError as error:
        return str(error)
    return ""


def tokens_of_a_microbatch(job: Job) -> int:
    """Return the tokens of a micro-batch, the mean where they vary.

    Where samples have none that are known, the samples; synthetic data: 0.
    """
    if isinstance(job.data, ImageText):
        return round(job.batch.microbatch_size * float(image_text_of(job).records.loads.tokens.mean()))
    if isinstance(job.data, DataFile):
        return job.batch.microbatch_size * job.data.seq_len
    return job.batch.microbatch_size if isinstance(job.data, OwnData) else 0


def tokens_per_step(job: Job, step: int | None = None) -> int:
    """Return the tokens of the global batch: of a step, or without one the mean of all where they vary."""
    if step is not None and isinstance(job.data, ImageText):
        return int(image_text_of(job).loads(step).tokens.sum())
    return job.batch.microbatches * job.parallel.data * tokens_of_a_microbatch(job)


def samples_per_step(job: Job) -> int:
    """Return the samples of the global batch."""
    return job.batch.microbatches * job.batch.microbatch_size * job.parallel.data


def image_text_of(job: Job) -> "ImageTextOrder":
    """Return which records of images and text each step has.

    Raises
    ------
    OSError, ValueError
        They cannot be read, or one of them not be used.
    """
    from hpcpipe.data import ImageTextOrder, held_out

    data, batch = job.data, job.batch
    assert isinstance(data, ImageText)
    records = _image_records(job, data.resolved_path)
    return ImageTextOrder(
        records,
        held=held_out(len(records), data.eval_fraction),
        seed=data.seed,
        microbatches=batch.microbatches,
        microbatch_size=batch.microbatch_size,
        replicas=job.parallel.data,
    )


def _image_records(job: Job, path: "Path") -> "ImageRecords":
    from hpcpipe.data import Geometry

    data, model = job.data, job.model
    assert isinstance(data, ImageText)
    assert isinstance(model, Vlm)
    geometry = Geometry(model.patch, model.merge, model.channels, data.max_side, shrink=data.larger == "shrink")
    return _indexed(path, geometry, model.context, data.resolved_tokenizer)


@lru_cache(maxsize=4)
def _indexed(path: "Path", geometry: "Geometry", context: int, tokenizer: "Path | None") -> "ImageRecords":
    from hpcpipe.data import ImageRecords, open_tokenizer

    return ImageRecords(path, geometry, context=context, tokenizer=open_tokenizer(tokenizer))


def _image_text(job: Job, path: "Path", inputs: bool) -> "Source":
    from hpcpipe.data import ImageTextSource

    return ImageTextSource(_image_records(job, path), images=inputs)


def _text(job: Job, path: "Path", _inputs: bool) -> "Source":
    from hpcpipe.data import Windows, open_text

    data = job.data
    assert isinstance(data, Text)
    row = open_text(path, data.resolved_tokenizer)
    return Windows(row, seq_len=data.seq_len, vocab_size=getattr(job.model, "vocab_size", None))


def _tokens(job: Job, path: "Path", _inputs: bool) -> "Source":
    from hpcpipe.data import Windows, open_tokens

    data = job.data
    assert isinstance(data, Tokens)
    row = open_tokens(path, dtype=data.dtype, dataset=data.dataset, end_of_document=data.end_of_document)
    return Windows(row, seq_len=data.seq_len, vocab_size=getattr(job.model, "vocab_size", None))


_OPENERS: dict[type, Callable[[Job, "Path", bool], "Source"]] = {Text: _text, Tokens: _tokens, ImageText: _image_text}


def _sources(job: Job, *, inputs: bool = True) -> tuple["Source", int, int]:
    """Return the source, the number of samples to train on, which come first, and of those held out."""
    from hpcpipe.data import OwnSource, held_out

    data = job.data
    source: Source
    if (kept := _LOOKED_AT.pop(job.sha256, None)) is not None:
        source = kept
    elif isinstance(data, OwnData):
        name = f"[data] {data.kind}"
        try:
            source = OwnSource(name, call_factory("data", data.kind, data.options, folder=data.folder))
        except TypeError as error:
            raise UserCodeError(str(error)) from None
    else:
        assert isinstance(data, Stored)
        source = _OPENERS[type(data)](job, data.resolved_path, inputs)
    assert isinstance(data, Samples)
    held = held_out(len(source), data.eval_fraction)
    return source, len(source) - held, held
