"""What several values of a job, or a value and the machine, must satisfy together: one small function a rule.

Each names the values it looks at and is left out where one of them is wrong by itself, so one cause gives one fault.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcpipe.job.datafile import PACKAGE, NoSuchPackageError
from hpcpipe.job.faults import Path, Problem
from hpcpipe.job.schema import Job, Optimizer
from hpcpipe.job.words import listing, show

Rule = Callable[[Job, int | None], Iterator[Problem]]


class Check(NamedTuple):
    """A rule and the values it needs."""

    needs: tuple[Path, ...]
    rule: Rule


CHECKS: list[Check] = []
BYTE_VALUES = 256


def needs(*keys: str) -> Callable[[Rule], Rule]:
    """Register a rule over the named values."""

    def register(rule: Rule) -> Rule:
        CHECKS.append(Check(tuple(tuple(key.split(".")) for key in keys), rule))
        return rule

    return register


@needs("parallel.pipeline", "parallel.data", "parallel.tensor")
def _the_mesh_has_as_many_places_as_there_are_ranks(job: Job, ranks: int | None) -> Iterator[Problem]:
    mesh = job.parallel
    if ranks is None or ranks == mesh.ranks:
        return
    there, needed = f"{'is' if ranks == 1 else 'are'} {ranks}", _count(mesh.ranks, "rank")
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


@needs("parallel.pipeline", "model.layers")
def _every_stage_has_a_layer(job: Job, _: int | None) -> Iterator[Problem]:
    stages, layers = job.parallel.pipeline, job.model.layers
    if stages > layers:
        yield Problem(
            ("parallel", "pipeline"),
            f"pipeline = {stages} stages cannot each hold one of the model's {_count(layers, 'layer')}",
            f"set pipeline to at most {layers}, or [model] layers to at least {stages}",
        )


@needs("parallel.split", "parallel.pipeline")
def _the_split_has_an_entry_for_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    split, stages = job.parallel.split, job.parallel.pipeline
    if isinstance(split, tuple) and len(split) != stages:
        yield Problem(
            ("parallel", "split"),
            f"split lists {_count(len(split), 'stage')}, but pipeline = {stages}",
            f'list {_count(stages, "number")}, set pipeline = {len(split)}, or write split = "auto"',
        )


@needs("parallel.split", "model.layers")
def _the_split_covers_every_layer_once(job: Job, _: int | None) -> Iterator[Problem]:
    split, layers = job.parallel.split, job.model.layers
    if isinstance(split, tuple) and sum(split) != layers:
        yield Problem(
            ("parallel", "split"),
            f"split sums to {sum(split)} layers, but the model has layers = {layers}",
            f'make the entries sum to {layers}, or write split = "auto"',
        )


@needs("data.seq_len", "model.context")
def _a_sequence_fits_into_the_context(job: Job, _: int | None) -> Iterator[Problem]:
    length, context = job.data.seq_len, job.model.context
    if length > context:
        yield Problem(
            ("data", "seq_len"),
            f"seq_len = {length} is longer than the model's context = {context}",
            f"set seq_len to at most {context}, or [model] context to at least {length}",
        )


@needs("model.dim", "model.heads")
def _the_heads_divide_the_width(job: Job, _: int | None) -> Iterator[Problem]:
    dim, heads = job.model.dim, job.model.heads
    if dim % heads:
        fitting = sorted({max(heads, dim - dim % heads), dim - dim % heads + heads})
        yield Problem(
            ("model", "heads"),
            f"heads = {heads} does not divide dim = {dim}",
            f"set dim to a multiple of {heads}, such as {listing([str(d) for d in fitting], 'or')}, or change heads",
        )


@needs("data.kind", "model.vocab_size")
def _every_token_is_in_the_vocabulary(job: Job, _: int | None) -> Iterator[Problem]:
    if job.model.vocab_size < BYTE_VALUES:
        yield Problem(
            ("model", "vocab_size"),
            f"vocab_size = {job.model.vocab_size} is too small: the tokens of a text are {BYTE_VALUES} bytes",
            f"set vocab_size = {BYTE_VALUES} or leave it out",
        )


@needs("schedule.in_flight", "parallel.pipeline")
def _the_caps_have_an_entry_for_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    caps, stages = job.schedule.in_flight, job.parallel.pipeline
    if isinstance(caps, tuple) and len(caps) != stages:
        yield Problem(
            ("schedule", "in_flight"),
            f"in_flight lists {_count(len(caps), 'stage')}, but pipeline = {stages}",
            f'list {stages} caps, the first stage first, or write in_flight = "equal-memory"',
        )


@needs("schedule.dispatch", "schedule.hint")
def _only_an_order_can_be_waited_for(job: Job, _: int | None) -> Iterator[Problem]:
    if job.schedule.dispatch == "fixed" and job.schedule.hint == "bf":
        yield Problem(
            ("schedule", "dispatch"),
            'dispatch = "fixed" waits for the next task of an order, but hint = "bf" is none: it ranks what is ready',
            'set hint = "1f1b", or dispatch = "ready"',
        )


@needs("comm.slots", "schedule.dispatch", "schedule.hint", "parallel.pipeline", "batch.microbatches")
def _a_fixed_order_has_the_slots_that_it_fills(job: Job, _: int | None) -> Iterator[Problem]:
    """Refuse slots that a fixed order fills before the backward that gives one back: it would wait for ever."""
    slots, microbatches, stages = job.comm.slots, job.batch.microbatches, job.parallel.pipeline
    if job.schedule.dispatch != "fixed" or isinstance(slots, str) or stages == 1:
        return
    filled = min(microbatches, stages - 1) if job.schedule.hint == "1f1b" else microbatches  # on stage 1, the fullest
    if slots < filled:
        yield Problem(
            ("comm", "slots"),
            f"slots = {slots} cannot hold the {filled} micro-batches that the fixed order {job.schedule.hint} keeps in "
            "flight: the run would never end",
            f'set slots to at least {filled} or to "auto", or dispatch = "ready"',
        )


@needs("optimizer.name", "optimizer.betas", "optimizer.eps", "optimizer.momentum")
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


@needs("data.path")
def _the_data_can_be_read(job: Job, _: int | None) -> Iterator[Problem]:
    where = ("data", "path")
    try:
        path = job.data.resolved_path
        if not path.exists():
            relative = not job.data.path.startswith((PACKAGE, "/", "~"))
            hint = "a relative path starts at the job file's folder" if relative else "check the path"
            yield Problem(where, f"the data file {path} does not exist", hint)
        elif path.is_dir():
            yield Problem(where, f"{path} is a folder, not a data file", "name a text file in it")
        elif not path.is_file():
            yield Problem(where, f"{path} is not a regular file", "name a text file")
        else:
            with path.open("rb") as file:
                empty = not file.read(1)
            if empty:
                yield Problem(where, f"the data file {path} is empty", "name a file with text in it")
    except NoSuchPackageError as error:
        yield Problem(where, str(error), "install the package, or name a file")
    except OSError as error:
        yield Problem(
            where, f"{job.data.path} cannot be read: {error.strerror or error}", "check the path and its permissions"
        )


@needs("data.path", "data.seq_len")
def _the_data_holds_a_sequence(job: Job, _: int | None) -> Iterator[Problem]:
    try:
        path = job.data.resolved_path
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, NoSuchPackageError):
        return
    wanted = job.data.seq_len + 1
    if 0 < size < wanted:
        yield Problem(
            ("data", "path"),
            f"{path} holds {_count(size, 'token')}, but one sequence needs seq_len + 1 = {wanted}",
            f"name a longer file, or set seq_len to at most {size - 1}" if size > 1 else "name a longer file",
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
