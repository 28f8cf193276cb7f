"""What several values of a job, or a value and the machine, must satisfy together: one small function a rule.

Each names the values it looks at and is left out where one of them is wrong by itself, so one cause gives one fault.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcpipe.job.datafile import PACKAGE, NoSuchPackageError
from hpcpipe.job.faults import Path, Problem
from hpcpipe.job.injected import Encoder, Straggler
from hpcpipe.job.schema import Emulated, Gpt, Job, Optimizer, SyntheticData, SyntheticModel, Text, Variability
from hpcpipe.job.words import listing, show
from hpcpipe.plan import ORDERS, RULES
from hpcpipe.plan.hints import FAMILIES, SPLIT

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


@needs("parallel.pipeline", "parallel.chunks", "schedule.hint", "model.layers")
def _every_virtual_stage_has_a_layer(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Gpt)
    stages, chunks, layers = job.parallel.pipeline, job.chunks, job.model.layers
    if stages * chunks > layers:
        pieces = f"{stages} stages" if chunks == 1 else f"{stages} stages x {chunks} chunks"
        yield Problem(
            ("parallel", "pipeline"),
            f"pipeline = {pieces} cannot each hold one of the model's {_count(layers, 'layer')}",
            f"set pipeline to at most {layers // chunks or 1}, or [model] layers to at least {stages * chunks}",
        )


@needs("parallel.split", "parallel.pipeline", "parallel.chunks", "schedule.hint")
def _the_split_has_an_entry_for_every_virtual_stage(job: Job, _: int | None) -> Iterator[Problem]:
    split, stages = job.parallel.split, job.parallel.pipeline * job.chunks
    if isinstance(split, tuple) and len(split) != stages:
        many = f"pipeline = {stages}" if job.chunks == 1 else f"pipeline x chunks = {stages}"
        yield Problem(
            ("parallel", "split"),
            f"split lists {_count(len(split), 'stage')}, but {many}",
            f'list {_count(stages, "number")}, set pipeline = {len(split)}, or write split = "auto"',
        )


@needs("parallel.split", "model.layers")
def _the_split_covers_every_layer_once(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Gpt)
    split, layers = job.parallel.split, job.model.layers
    if isinstance(split, tuple) and sum(split) != layers:
        yield Problem(
            ("parallel", "split"),
            f"split sums to {sum(split)} layers, but the model has layers = {layers}",
            f'make the entries sum to {layers}, or write split = "auto"',
        )


@needs("data.seq_len", "model.context")
def _a_sequence_fits_into_the_context(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, Text)
    assert isinstance(job.model, Gpt)
    length, context = job.data.seq_len, job.model.context
    if length > context:
        yield Problem(
            ("data", "seq_len"),
            f"seq_len = {length} is longer than the model's context = {context}",
            f"set seq_len to at most {context}, or [model] context to at least {length}",
        )


@needs("model.dim", "model.heads")
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


@needs("data.path", "model.vocab_size")
def _every_token_is_in_the_vocabulary(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Gpt)
    if job.model.vocab_size < BYTE_VALUES:
        yield Problem(
            ("model", "vocab_size"),
            f"vocab_size = {job.model.vocab_size} is too small: the tokens of a text are {BYTE_VALUES} bytes",
            f"set vocab_size = {BYTE_VALUES} or leave it out",
        )


@needs("schedule.in_flight", "schedule.stash", "parallel.pipeline")
def _the_caps_have_an_entry_for_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    stages = job.parallel.pipeline
    for key in ("in_flight", "stash"):
        caps = getattr(job.schedule, key)
        if isinstance(caps, tuple) and len(caps) != stages:
            yield Problem(
                ("schedule", key),
                f"{key} lists {_count(len(caps), 'stage')}, but pipeline = {stages}",
                f'list {stages} caps, the first stage first, or write {key} = "equal-memory"',
            )


@needs("schedule.dispatch", "schedule.hint")
def _only_an_order_can_be_waited_for(job: Job, _: int | None) -> Iterator[Problem]:
    hint = job.schedule.hint
    if job.schedule.dispatch == "fixed" and hint in RULES:
        yield Problem(
            ("schedule", "dispatch"),
            f'dispatch = "fixed" waits for the next task of an order, but hint = {show(hint)} is none: it ranks what '
            "is ready",
            'set hint = "1f1b", or dispatch = "ready"',
        )


@needs("schedule.hint", "parallel.chunks")
def _the_chunks_are_those_of_the_hint(job: Job, _: int | None) -> Iterator[Problem]:
    hint, chunks = job.schedule.hint, job.parallel.chunks
    wanted = FAMILIES[hint].chunks if hint in FAMILIES else None
    if isinstance(chunks, int) and wanted is not None and chunks != wanted:
        yield Problem(
            ("parallel", "chunks"),
            f"chunks = {chunks}, but hint = {show(hint)} has {_count(wanted, 'chunk')} a stage",
            f'set chunks = {wanted}, leave it out, or set hint = "interleaved" or "bf"',
        )


@needs("schedule.hint", "schedule.k", "batch.microbatches")
def _groups_are_those_of_kfkb(job: Job, _: int | None) -> Iterator[Problem]:
    hint, k, microbatches = job.schedule.hint, job.schedule.k, job.batch.microbatches
    if hint != "kfkb" and k != 1:
        yield Problem(("schedule", "k"), f"k = {k} has no effect with hint = {show(hint)}", 'set hint = "kfkb"')
    elif k > microbatches:
        yield Problem(
            ("schedule", "k"),
            f"k = {k} is more than the {_count(microbatches, 'micro-batch', 'micro-batches')} of a step",
            f"set k to at most {microbatches}",
        )


@needs("schedule.hint", "schedule.stash")
def _a_stash_cap_needs_a_split_backward(job: Job, _: int | None) -> Iterator[Problem]:
    hint, stash = job.schedule.hint, job.schedule.stash
    if stash != "equal-memory" and hint not in SPLIT:
        yield Problem(
            ("schedule", "stash"),
            f"stash = {show(stash)} has no effect with hint = {show(hint)}, which does not split the backward",
            f"set in_flight, or a hint that splits: {listing([show(name) for name in sorted(SPLIT)], 'or')}",
        )


@needs("device.kind", "model.kind", "data.kind")
def _what_is_synthetic_goes_together(job: Job, _: int | None) -> Iterator[Problem]:
    parts = {
        "model": isinstance(job.model, SyntheticModel),
        "data": isinstance(job.data, SyntheticData),
        "device": isinstance(job.device, Emulated),
    }
    if len(set(parts.values())) > 1:
        real = [f"[{table}]" for table, synthetic in parts.items() if not synthetic]
        yield Problem(
            (next(table for table, synthetic in parts.items() if synthetic), "kind"),
            "an emulated device runs a synthetic model on synthetic data, and only those, but "
            f"{listing(real)} {'is' if len(real) == 1 else 'are'} real",
            'set kind = "synthetic" in [model] and [data] and kind = "emulated" in [device], or none of them',
        )


@needs("device.kind", "device.forward_ms", "device.backward_ms", "device.weight_ms", "parallel.pipeline")
def _emulated_times_are_those_of_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    device, stages = job.device, job.parallel.pipeline
    assert isinstance(device, Emulated)
    good = True
    for key in ("forward_ms", "backward_ms", "weight_ms"):
        times = getattr(device, key)
        if isinstance(times, tuple) and len(times) != stages:
            good = False
            yield Problem(
                ("device", key),
                f"{key} lists {_count(len(times), 'stage')}, but pipeline = {stages}",
                f"list {_count(stages, 'number')}, or write one number for all",
            )
    if not good:
        return
    for stage in range(stages):
        if device.of("weight_ms", stage) > device.of("backward_ms", stage):
            yield Problem(
                ("device", "weight_ms"),
                f"weight_ms = {device.of('weight_ms', stage):g} of stage {stage} is more than its whole backward, "
                f"backward_ms = {device.of('backward_ms', stage):g}",
                "weight_ms is the part of backward_ms that is the weight gradient",
            )
            return


@needs("device.weight_ms", "schedule.hint")
def _a_split_backward_has_weight_gradients(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.device, Emulated)
    if job.schedule.hint in SPLIT and job.device.weight_ms == 0:
        yield Problem(
            ("device", "weight_ms"),
            f"hint = {show(job.schedule.hint)} splits the backward, but weight_ms = 0 says that it cannot be split",
            "set weight_ms to the part of backward_ms that is the weight gradient, often a half",
        )


@needs("variability.compute", "variability.network", "device.kind", "parallel.pipeline")
def _what_varies_is_there(job: Job, _: int | None) -> Iterator[Problem]:
    emulated, stages = isinstance(job.device, Emulated), job.parallel.pipeline
    for key in ("compute", "network"):
        model = getattr(job.variability, key)
        where = ("variability", key)
        if not emulated and model != Variability.model_fields[key].default:
            yield Problem(
                where, f"{key} varies only what an emulated device does", 'set [device] kind = "emulated", or remove it'
            )
        elif isinstance(model, Straggler) and model.stage >= stages:
            yield Problem(
                where,
                f"stage = {model.stage} is not in a pipeline of {_count(stages, 'stage')}",
                f"stages count from 0 to {stages - 1}",
            )
        elif isinstance(model, Encoder) and model.stages > stages:
            yield Problem(
                where,
                f"stages = {model.stages} is more than pipeline = {stages}",
                f"set stages to at most {stages}",
            )


@needs(
    "comm.slots",
    "schedule.dispatch",
    "schedule.hint",
    "schedule.k",
    "parallel.pipeline",
    "parallel.chunks",
    "batch.microbatches",
)
def _a_fixed_order_has_the_slots_that_it_fills(job: Job, _: int | None) -> Iterator[Problem]:
    """Refuse slots that a fixed order fills before the backward that gives one back: it would wait for ever."""
    slots, stages, hint = job.comm.slots, job.parallel.pipeline, job.schedule.hint
    if job.schedule.dispatch != "fixed" or isinstance(slots, str) or stages == 1 or hint not in ORDERS:
        return
    filled = max(job.peaks().stash[1:])  # the first stage receives no activations
    if slots < filled:
        yield Problem(
            ("comm", "slots"),
            f"slots = {slots} cannot hold the {filled} micro-batches that the fixed order {hint} keeps in "
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
    assert isinstance(job.data, Text)
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
    assert isinstance(job.data, Text)
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


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
