"""What mesh, model, data and optimizer of a job, or one of them and the machine, must satisfy together.

One small function a rule; those of the schedule are in schedule_checks.py, those of files in data_checks.py.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from hpcpipe.job.datasets import DataFile
from hpcpipe.job.faults import Problem
from hpcpipe.job.models import LanguageModel, Llama, Vlm
from hpcpipe.job.rules import Rules, count, without_effect
from hpcpipe.job.schema import Job
from hpcpipe.job.words import listing, show

CHECKS = Rules()


@CHECKS.needs("parallel.pipeline", "parallel.data", "parallel.tensor")
def _the_mesh_has_as_many_places_as_there_are_ranks(job: Job, ranks: int | None) -> Iterator[Problem]:
    mesh = job.parallel
    if ranks is None or ranks == mesh.ranks:
        return
    there, needed = f"{'is' if ranks == 1 else 'are'} {ranks}", count(mesh.ranks, "rank")
    product = f"pipeline {mesh.pipeline} x data {mesh.data} x tensor {mesh.tensor}"
    stages = mesh.pipeline * mesh.tensor
    if ranks % stages == 0:
        other = f"data = {ranks // stages}"
    elif mesh.data == 1:
        other = f"pipeline = {ranks}"
    else:
        other = f"a pipeline x data of {ranks} ({ranks} is not a multiple of {stages})"
    yield Problem(
        ("parallel", "pipeline"),
        f"[parallel] needs {needed} ({product}), but there {there}",
        f"start {needed}, or set {other}",
    )


@CHECKS.needs("parallel.pipeline", "parallel.chunks", "schedule.hint", "model.layers")
def _every_virtual_stage_has_a_layer(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, LanguageModel | Vlm)
    stages, chunks, layers = job.parallel.pipeline, job.chunks, job.model.blocks
    if stages * chunks > layers:
        pieces = f"{stages} stages" if chunks == 1 else f"{stages} stages x {chunks} chunks"
        yield Problem(
            ("parallel", "pipeline"),
            f"pipeline = {pieces} cannot each hold one of the model's {count(layers, 'layer')}",
            f"set pipeline to at most {layers // chunks or 1}, or [model] layers to at least {stages * chunks}",
        )


@CHECKS.needs("parallel.split", "parallel.pipeline", "parallel.chunks", "schedule.hint")
def _the_split_has_an_entry_for_every_virtual_stage(job: Job, _: int | None) -> Iterator[Problem]:
    split, stages = job.parallel.split, job.parallel.pipeline * job.chunks
    if isinstance(split, tuple) and len(split) != stages:
        many = f"pipeline = {stages}" if job.chunks == 1 else f"pipeline x chunks = {stages}"
        yield Problem(
            ("parallel", "split"),
            f"split lists {count(len(split), 'stage')}, but {many}",
            f'list {count(stages, "number")}, set pipeline = {len(split)}, or write split = "auto"',
        )


@CHECKS.needs("parallel.split", "model.layers")
def _the_split_covers_every_layer_once(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, LanguageModel | Vlm)
    split, layers = job.parallel.split, job.model.blocks
    if isinstance(split, tuple) and sum(split) != layers:
        has = f"layers = {layers}"
        if isinstance(job.model, Vlm):
            has = f"encoder_layers + projector + layers = {layers}"
        yield Problem(
            ("parallel", "split"),
            f"split sums to {sum(split)} layers, but the model has {has}",
            f'make the entries sum to {layers}, or write split = "auto"',
        )


@CHECKS.needs("model.recompute", "model.layers")
def _every_recomputed_block_is_there(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, LanguageModel | Vlm)
    ranges, layers = job.model.recompute, job.model.blocks
    if isinstance(ranges, tuple) and ranges[-1][1] >= layers:
        yield Problem(
            ("model", "recompute"),
            f"recompute names block {ranges[-1][1]}, but the model's {count(layers, 'block')} "
            f"{'is 0' if layers == 1 else f'are 0 to {layers - 1}'}",
            f'name blocks up to {layers - 1}, or write recompute = "all"',
        )


@CHECKS.needs("data.seq_len", "model.context")
def _a_sequence_fits_into_the_context(job: Job, _: int | None) -> Iterator[Problem]:
    if not isinstance(job.data, DataFile) or not isinstance(job.model, LanguageModel):
        return
    length, context = job.data.seq_len, job.model.context
    if length > context:
        yield Problem(
            ("data", "seq_len"),
            f"seq_len = {length} is longer than the model's context = {context}",
            f"set seq_len to at most {context}, or [model] context to at least {length}",
        )


@CHECKS.needs("model.dim", "model.heads")
def _the_heads_divide_the_width(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, LanguageModel | Vlm)
    dim, heads = job.model.dim, job.model.heads
    if dim % heads:
        fitting = sorted({max(heads, dim - dim % heads), dim - dim % heads + heads})
        yield Problem(
            ("model", "heads"),
            f"heads = {heads} does not divide dim = {dim}",
            f"set dim to a multiple of {heads}, such as {listing([str(d) for d in fitting], 'or')}, or change heads",
        )


@CHECKS.needs("model.heads", "model.kv_heads")
def _the_key_heads_divide_the_heads(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Llama)
    heads, kv_heads = job.model.heads, job.model.kv_heads
    if heads % kv_heads:
        fitting = [str(number) for number in range(1, heads + 1) if heads % number == 0]
        yield Problem(
            ("model", "kv_heads"),
            f"kv_heads = {kv_heads} does not divide heads = {heads}",
            f"set kv_heads to {listing(fitting, 'or')}",
        )


@CHECKS.needs("model.head_dim")
def _rotated_heads_have_an_even_width(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Llama)
    width = job.model.head_dim
    if width % 2:
        yield Problem(
            ("model", "head_dim"),
            f"head_dim = {width} is odd, but rotary positions turn pairs of numbers",
            f"set head_dim = {width + 1}, or dim and heads so that dim / heads is even",
        )


@CHECKS.needs("optimizer.name", "optimizer.betas", "optimizer.eps", "optimizer.momentum")
def _every_setting_of_the_optimizer_has_an_effect(job: Job, _: int | None) -> Iterator[Problem]:
    for key, other in (("betas", "adamw"), ("eps", "adamw"), ("momentum", "sgd")):
        used_by = ("sgd",) if key == "momentum" else ("adamw", "adam")
        if job.optimizer.name not in used_by:
            yield from _without_effect(job, key, "name", other)


@CHECKS.needs("optimizer.schedule", "optimizer.lr", "optimizer.min_lr")
def _the_learning_rate_falls(job: Job, _: int | None) -> Iterator[Problem]:
    settings = job.optimizer
    if settings.schedule == "constant":
        yield from _without_effect(job, "min_lr", "schedule", "cosine")
    elif settings.min_lr > settings.lr:
        yield Problem(
            ("optimizer", "min_lr"),
            f"min_lr = {show(settings.min_lr)} is above lr = {show(settings.lr)}, from which the rate falls to it",
            f"set min_lr to at most {show(settings.lr)}",
        )


@CHECKS.needs("optimizer.clip", "optimizer.clip_scope")
def _a_clip_scope_has_a_clip(job: Job, _: int | None) -> Iterator[Problem]:
    if job.optimizer.clip == "off":
        yield from _without_effect(job, "clip_scope", "clip", 1.0)


@CHECKS.needs("optimizer.nonfinite", "optimizer.max_skips", "precision.compute", "precision.loss_scale")
def _steps_are_left_out_where_they_are_counted(job: Job, _: int | None) -> Iterator[Problem]:
    if job.optimizer.nonfinite != "skip" and not job.precision.dynamic_scale:
        yield from _without_effect(job, "max_skips", "nonfinite", "skip")


@CHECKS.needs("job.tensorboard")
def _what_writes_for_tensorboard_is_installed(job: Job, _: int | None) -> Iterator[Problem]:
    if job.run.tensorboard and find_spec("tensorboard") is None:
        yield Problem(
            ("job", "tensorboard"),
            "tensorboard = true needs the package tensorboard, which is not installed here",
            "pip install 'hpcpipe[tensorboard]', or leave it out: metrics.jsonl holds the same numbers",
        )


def _without_effect(job: Job, key: str, decided_by: str, other: Any) -> Iterator[Problem]:
    """Yield a problem if the key of `[optimizer]` is set although another one's value leaves it without effect."""
    because = f"{decided_by} = {show(getattr(job.optimizer, decided_by))}"
    return without_effect(job, "optimizer", [key], because=because, else_=f"set {decided_by} = {show(other)}")
