"""What mesh, model, data and optimizer of a job, or one of them and the machine, must satisfy together.

One small function a rule; those of the schedule are in schedule_checks.py, those of files in data_checks.py.
"""

from collections.abc import Iterator

from hpcpipe.job.datasets import DataFile
from hpcpipe.job.faults import Problem
from hpcpipe.job.models import Gpt
from hpcpipe.job.optimizer import Optimizer
from hpcpipe.job.rules import Rules, count
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
    assert isinstance(job.model, Gpt)
    stages, chunks, layers = job.parallel.pipeline, job.chunks, job.model.layers
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
    assert isinstance(job.model, Gpt)
    split, layers = job.parallel.split, job.model.layers
    if isinstance(split, tuple) and sum(split) != layers:
        yield Problem(
            ("parallel", "split"),
            f"split sums to {sum(split)} layers, but the model has layers = {layers}",
            f'make the entries sum to {layers}, or write split = "auto"',
        )


@CHECKS.needs("model.recompute", "model.layers")
def _every_recomputed_block_is_there(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Gpt)
    ranges, layers = job.model.recompute, job.model.layers
    if isinstance(ranges, tuple) and ranges[-1][1] >= layers:
        yield Problem(
            ("model", "recompute"),
            f"recompute names block {ranges[-1][1]}, but the model's {count(layers, 'block')} "
            f"{'is 0' if layers == 1 else f'are 0 to {layers - 1}'}",
            f'name blocks up to {layers - 1}, or write recompute = "all"',
        )


@CHECKS.needs("data.seq_len", "model.context")
def _a_sequence_fits_into_the_context(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, DataFile)
    assert isinstance(job.model, Gpt)
    length, context = job.data.seq_len, job.model.context
    if length > context:
        yield Problem(
            ("data", "seq_len"),
            f"seq_len = {length} is longer than the model's context = {context}",
            f"set seq_len to at most {context}, or [model] context to at least {length}",
        )


@CHECKS.needs("model.dim", "model.heads")
def _the_heads_divide_the_width(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Gpt)
    dim, heads = job.model.dim, job.model.heads
    if dim % heads:
        fitting = sorted({max(heads, dim - dim % heads), dim - dim % heads + heads})
        yield Problem(
            ("model", "heads"),
            f"heads = {heads} does not divide dim = {dim}",
            f"set dim to a multiple of {heads}, such as {listing([str(d) for d in fitting], 'or')}, or change heads",
        )


@CHECKS.needs("optimizer.name", "optimizer.betas", "optimizer.eps", "optimizer.momentum")
def _every_setting_of_the_optimizer_has_an_effect(job: Job, _: int | None) -> Iterator[Problem]:
    used = {"adamw": ("betas", "eps"), "sgd": ("momentum",)}
    name = job.optimizer.name
    for other, keys in used.items():
        for key in keys:
            value = getattr(job.optimizer, key)
            if other != name and value != Optimizer.model_fields[key].default:
                yield Problem(
                    ("optimizer", key),
                    f"{key} = {show(value)} has no effect with name = {show(name)}",
                    f"remove {key}, or set name = {show(other)}",
                )
