"""What schedule, caps, chunks, device and variability of a job must satisfy together, and what is allowed but slow.

One small function a rule.
"""

from collections.abc import Iterator, Sequence

from hpcpipe.job.datasets import ImageText, SyntheticData
from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.injected import Encoder, Microbatch, Straggler
from hpcpipe.job.models import SyntheticModel
from hpcpipe.job.planned import needs_sizes, schedule_of
from hpcpipe.job.rules import Rules, count
from hpcpipe.job.schema import Job, Variability
from hpcpipe.job.words import listing, show
from hpcpipe.plan import RULES
from hpcpipe.plan.caps import harmful
from hpcpipe.plan.hints import FAMILIES, SPLIT
from hpcpipe.plan.slots import sources

CHECKS = Rules()


@CHECKS.needs("schedule.in_flight", "schedule.stash", "parallel.pipeline")
def _the_caps_have_an_entry_for_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    stages = job.parallel.pipeline
    for key in ("in_flight", "stash"):
        caps = getattr(job.schedule, key)
        if isinstance(caps, tuple) and len(caps) != stages:
            yield Problem(
                ("schedule", key),
                f"{key} lists {count(len(caps), 'stage')}, but pipeline = {stages}",
                f'list {stages} caps, the first stage first, or write {key} = "equal-memory"',
            )


@CHECKS.needs("schedule.dispatch", "schedule.hint")
def _only_an_order_can_be_waited_for(job: Job, _: int | None) -> Iterator[Problem]:
    hint = job.schedule.hint
    if job.schedule.dispatch == "fixed" and hint in RULES:
        yield Problem(
            ("schedule", "dispatch"),
            f'dispatch = "fixed" waits for the next task of an order, but hint = {show(hint)} is none: it ranks what '
            "is ready",
            'set hint = "1f1b", or dispatch = "ready"',
        )


@CHECKS.needs("schedule.hint", "parallel.chunks", "parallel.pipeline")
def _the_chunks_are_those_of_the_hint(job: Job, _: int | None) -> Iterator[Problem]:
    hint, chunks = job.schedule.hint, job.parallel.chunks
    wanted = FAMILIES[hint].chunks if hint in FAMILIES else None
    if isinstance(chunks, int) and wanted is not None and chunks != wanted:
        yield Problem(
            ("parallel", "chunks"),
            f"chunks = {chunks}, but hint = {show(hint)} has {count(wanted, 'chunk')} a stage",
            f'set chunks = {wanted}, leave it out, or set hint = "interleaved" or "bf"',
        )
    most = FAMILIES[hint].most_chunks if hint in FAMILIES else None
    if isinstance(chunks, int) and most is not None and chunks > most and job.parallel.pipeline > 1:
        yield Problem(
            ("parallel", "chunks"),
            f"chunks = {chunks}, but hint = {show(hint)} has at most {count(most, 'chunk')} a stage",
            f'set chunks = {most}, or set hint = "interleaved" or "bf"',
        )


@CHECKS.needs("schedule.hint", "parallel.pipeline", "parallel.chunks", "batch.microbatches")
def _orders_from_a_file_are_of_the_job_s_size(job: Job, _: int | None) -> Iterator[Problem]:
    table = job.schedule.table
    if table is None:
        return
    chunks = job.parallel.chunks
    sizes = {
        "pipeline": (job.parallel.pipeline, table.placement.stages),
        "chunks": (table.placement.chunks if isinstance(chunks, str) else chunks, table.placement.chunks),
        "microbatches": (job.batch.microbatches, table.microbatches),
    }
    wrong = {name: pair for name, pair in sizes.items() if pair[0] != pair[1]}
    if wrong:
        ours = listing([f"{name} = {pair[0]}" for name, pair in wrong.items()])
        yield Problem(
            ("schedule", "hint"),
            f"the table of {show(job.schedule.hint)} does not fit {ours}",
            f"it has {listing([f'{name} = {pair[1]}' for name, pair in wrong.items()])}",
        )


@CHECKS.needs("schedule.hint", "schedule.k", "batch.microbatches")
def _groups_are_those_of_kfkb(job: Job, _: int | None) -> Iterator[Problem]:
    hint, k, microbatches = job.schedule.hint, job.schedule.k, job.batch.microbatches
    if hint != "kfkb" and k != 1:
        yield Problem(("schedule", "k"), f"k = {k} has no effect with hint = {show(hint)}", 'set hint = "kfkb"')
    elif k > microbatches:
        yield Problem(
            ("schedule", "k"),
            f"k = {k} is more than the {count(microbatches, 'micro-batch', 'micro-batches')} of a step",
            f"set k to at most {microbatches}",
        )


@CHECKS.needs("schedule.hint", "schedule.stash")
def _a_stash_cap_needs_a_split_backward(job: Job, _: int | None) -> Iterator[Problem]:
    hint, stash = job.schedule.hint, job.schedule.stash
    if stash != "equal-memory" and not job.splits:
        yield Problem(
            ("schedule", "stash"),
            f"stash = {show(stash)} has no effect with hint = {show(hint)}, which does not split the backward",
            f"set in_flight, or a hint that splits: {listing([show(name) for name in sorted(SPLIT)], 'or')}",
        )


@CHECKS.needs(
    "schedule.in_flight",
    "schedule.stash",
    "schedule.hint",
    "schedule.dispatch",
    "schedule.k",
    "parallel.pipeline",
    "parallel.chunks",
    "batch.microbatches",
)
def _the_caps_leave_room_for_every_chunk(job: Job, _: int | None) -> Iterator[Problem]:
    if not (_problems_of_sizes(job) or needs_sizes(job)):
        yield from _problems_of_caps(job, None)


@CHECKS.needs(
    "schedule.in_flight",
    "schedule.stash",
    "schedule.hint",
    "schedule.dispatch",
    "schedule.k",
    "parallel.pipeline",
    "parallel.chunks",
    "batch.microbatches",
    "device.message_bytes",
)
def _caps_in_bytes_hold_an_emulated_micro_batch(job: Job, _: int | None) -> Iterator[Problem]:
    """Of an emulated device the sizes are known; those of a model are looked at when it is made."""
    device, stages = job.device, job.parallel.pipeline
    assert isinstance(device, Emulated)
    listed = isinstance(device.message_bytes, tuple) and len(device.message_bytes) != stages
    if needs_sizes(job) and not listed and not _problems_of_sizes(job):
        yield from _problems_of_caps(job, [device.bytes_from(stage) for stage in range(stages)])


def _problems_of_caps(job: Job, activation_bytes: Sequence[float] | None) -> Iterator[Problem]:
    try:
        schedule_of(job, activation_bytes=activation_bytes)
    except ValueError as error:
        key = "stash" if str(error).startswith("stash") else "in_flight"
        yield Problem(("schedule", key), str(error), f'write {key} = "equal-memory"')


def _problems_of_sizes(job: Job) -> bool:
    """Return whether another rule refuses what a schedule is made of."""
    rules = (
        _the_caps_have_an_entry_for_every_stage,
        _only_an_order_can_be_waited_for,
        _the_chunks_are_those_of_the_hint,
        _groups_are_those_of_kfkb,
        _orders_from_a_file_are_of_the_job_s_size,
    )
    return any(True for rule in rules for _ in rule(job, None))


def warnings_of(job: Job) -> Iterator[Problem]:
    """Yield what is allowed and yet known to be slow. The job has no faults."""
    settings = job.schedule
    costs_differ = isinstance(job.variability.compute, Encoder | Microbatch) or isinstance(job.data, ImageText)
    if settings.admission != "as-given" and not costs_differ:
        yield Problem(
            ("schedule", "admission"),
            f"admission = {show(settings.admission)} changes nothing: no micro-batch is known to cost more than others",
            'write "as-given", or let costs follow the micro-batch (image-text data, or an emulated device with '
            'compute = "microbatch")',
        )
    if job.precision.reduce != "fp32" and job.parallel.data == 1:
        yield Problem(
            ("precision", "reduce"),
            f"reduce = {show(job.precision.reduce)} changes nothing: one replica exchanges no gradients",
            'write "fp32", or set [parallel] data to at least 2',
        )
    if settings.dispatch != "ready" or needs_sizes(job):
        return
    schedule = schedule_of(job)
    slow = harmful(schedule.limits, placement=job.placement, microbatches=job.batch.microbatches)
    if not slow:
        return
    key = "stash" if settings.in_flight == "equal-memory" else "in_flight"
    stages = listing([str(stage) for stage in slow]) if len(slow) < 9 else f"{slow[0]} to {slow[-1]}"
    yield Problem(
        ("schedule", key),
        f"{key} = {show(getattr(settings, key))} is less than an even pipeline keeps under way on stage {stages}: "
        "it will be slower than fixed 1F1B",
        'write "equal-memory", or a multiple of 1f1b such as "1.5x"',
    )


@CHECKS.needs("device.kind", "model.kind", "data.kind")
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


@CHECKS.needs(
    "device.kind",
    "device.forward_ms",
    "device.backward_ms",
    "device.weight_ms",
    "device.message_bytes",
    "parallel.pipeline",
)
def _emulated_times_are_those_of_every_stage(job: Job, _: int | None) -> Iterator[Problem]:
    device, stages = job.device, job.parallel.pipeline
    assert isinstance(device, Emulated)
    good = True
    for key in ("forward_ms", "backward_ms", "weight_ms", "message_bytes"):
        times = getattr(device, key)
        if isinstance(times, tuple) and len(times) != stages:
            good = False
            yield Problem(
                ("device", key),
                f"{key} lists {count(len(times), 'stage')}, but pipeline = {stages}",
                f"list {count(stages, 'number')}, or write one number for all",
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


@CHECKS.needs("device.weight_ms", "schedule.hint")
def _a_split_backward_has_weight_gradients(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.device, Emulated)
    if job.splits and job.device.weight_ms == 0 and isinstance(job.model, SyntheticModel):
        yield Problem(
            ("device", "weight_ms"),
            f"hint = {show(job.schedule.hint)} splits the backward, but weight_ms = 0 says that it cannot be split",
            'set weight_ms to the part of backward_ms that is the weight gradient, often a half, or hint = "bf"',
        )


@CHECKS.needs("variability.compute", "variability.network", "device.kind", "parallel.pipeline")
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
                f"stage = {model.stage} is not in a pipeline of {count(stages, 'stage')}",
                f"stages count from 0 to {stages - 1}",
            )
        elif isinstance(model, Encoder) and model.stages > stages:
            yield Problem(
                where,
                f"stages = {model.stages} is more than pipeline = {stages}",
                f"set stages to at most {stages}",
            )


@CHECKS.needs(
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
    if job.schedule.dispatch != "fixed" or isinstance(slots, str) or stages == 1 or _problems_of_sizes(job):
        return
    filled = max(job.peaks().stash[1 if job.chunks == 1 else 0 :])  # with one chunk stage 0 receives no activations
    if slots < filled:
        yield Problem(
            ("comm", "slots"),
            f"slots = {slots} cannot hold the {filled} micro-batches that the fixed order {hint} keeps in "
            "flight: the run would never end",
            f'set slots to at least {filled} or to "auto", or dispatch = "ready"',
        )


@CHECKS.needs(
    "comm.slots",
    "schedule.dispatch",
    "schedule.hint",
    "schedule.k",
    "schedule.in_flight",
    "schedule.stash",
    "parallel.pipeline",
    "parallel.chunks",
    "batch.microbatches",
)
def _chunks_and_late_weights_have_the_slots_that_they_fill(job: Job, _: int | None) -> Iterator[Problem]:
    """Refuse slots that others than the oldest micro-batch fill, where these may have to wait for it."""
    slots, hint = job.comm.slots, job.schedule.hint
    if job.schedule.dispatch != "ready" or isinstance(slots, str) or not (job.splits or job.chunks > 1):
        return
    if needs_sizes(job):
        needed = job.batch.microbatches
    else:
        try:
            schedule = schedule_of(job)
        except ValueError:  # said elsewhere
            return
        stages = range(job.parallel.pipeline)
        needed = max((source.slots for stage in stages for source in sources(schedule, stage)), default=0)
    if slots < needed:
        yield Problem(
            ("comm", "slots"),
            f"slots = {slots} cannot hold the {needed} micro-batches that hint = {show(hint)} may keep at an edge: the "
            "run might never end",
            f'set slots to at least {needed} or to "auto"',
        )
