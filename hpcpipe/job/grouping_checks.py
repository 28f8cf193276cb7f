"""What the grouping of `[tune]` asks of schedule, batch and device. One small function a rule."""

from collections.abc import Iterator, Sequence

from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules, without_effect
from hpcpipe.job.schema import Job
from hpcpipe.job.tune import show_bytes
from hpcpipe.job.words import show

CHECKS = Rules()


@CHECKS.needs("tune.grouping", "schedule.hint", "schedule.in_flight")
def _grouping_chooses_among_kfkb(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.grouping == "off":
        return
    if job.schedule.hint != "kfkb":
        yield Problem(
            ("tune", "grouping"),
            f'grouping = "on" chooses the k of hint = "kfkb", but the hint is {show(job.schedule.hint)}',
            'set [schedule] hint = "kfkb", or grouping = "off"',
        )
    if job.schedule.dispatch == "ready" and job.schedule.in_flight != "equal-memory":
        yield Problem(
            ("schedule", "in_flight"),
            f'in_flight = {show(job.schedule.in_flight)} would be overruled: grouping = "on" chooses the caps',
            "remove it, and say with [tune] memory_limit how much a rank may hold",
        )


@CHECKS.needs("tune.grouping", "schedule.hint", "schedule.k", "batch.microbatches")
def _groups_divide_the_micro_batches(job: Job, _: int | None) -> Iterator[Problem]:
    k, microbatches = job.schedule.k, job.batch.microbatches
    if job.tune.grouping == "on" and job.schedule.hint == "kfkb" and k <= microbatches and microbatches % k:
        fitting = [d for d in range(1, microbatches + 1) if microbatches % d == 0]
        yield Problem(
            ("schedule", "k"),
            f'k = {k} does not divide microbatches = {microbatches}, and grouping = "on" chooses among those that do',
            f"start with the k next to it, {min(fitting, key=lambda d: (abs(d - k), d))}",
        )


@CHECKS.needs("tune.grouping", "tune.memory_limit")
def _what_trades_memory_for_speed_knows_how_much_there_is(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.grouping == "on" and job.tune.memory_limit == "none":
        yield Problem(
            ("tune", "grouping"),
            'grouping = "on" buys speed with memory, but no memory_limit says how much of it a rank may use',
            'for example [tune] memory_limit = "8 GiB"',
        )


@CHECKS.needs(
    "tune.grouping", "tune.microbatch_size", "tune.memory_limit", "tune.interval", "tune.trial", "tune.margin"
)
def _every_setting_of_the_grouping_has_an_effect(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.grouping == "off":
        keys = ("microbatch_size", "interval", "trial", "margin")
        yield from without_effect(job, "tune", keys, because='grouping = "off"', else_='set grouping = "on"')


@CHECKS.needs("tune.interval", "tune.trial")
def _a_trial_ends_before_the_next_look(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.trial > job.tune.interval:
        yield Problem(
            ("tune", "trial"),
            f"trial = {job.tune.trial} steps are more than the interval = {job.tune.interval} between two looks",
            f"set trial to at most {job.tune.interval}",
        )


@CHECKS.needs("device.forward_ms", "device.backward_ms", "device.fixed_ms", "parallel.pipeline")
def _the_fixed_part_is_a_part(job: Job, _: int | None) -> Iterator[Problem]:
    device = job.device
    assert isinstance(device, Emulated)
    for key in ("forward_ms", "backward_ms"):
        times = getattr(device, key)
        least = min(times) if isinstance(times, tuple) else times
        if device.fixed_ms > least:
            yield Problem(
                ("device", "fixed_ms"),
                f"fixed_ms = {device.fixed_ms:g} is more than the whole {key} = {least:g}, of which it is a part",
                f"set fixed_ms to at most {least:g}",
            )
            return


@CHECKS.needs(
    "tune.grouping",
    "tune.microbatch_size",
    "tune.memory_limit",
    "device.message_bytes",
    "schedule.hint",
    "schedule.k",
    "parallel.pipeline",
    "batch.microbatches",
    "batch.microbatch_size",
)
def _what_the_run_starts_with_fits_the_limit(job: Job, _: int | None) -> Iterator[Problem]:
    """Refuse a limit that nothing fits, or that the start does not fit; of an emulated device the sizes are known."""
    assert isinstance(job.device, Emulated)
    limit, batch, stages = job.tune.limit_bytes, job.batch, job.parallel.pipeline
    if job.tune.grouping == "off" or limit is None or job.schedule.hint != "kfkb":
        return
    sample = [job.device.bytes_from(stage) / batch.microbatch_size for stage in range(stages)]
    size = 1 if job.tune.microbatch_size == "tuned" else batch.microbatch_size
    samples = batch.microbatches * batch.microbatch_size
    least, fullest = _fullest([min(samples // size, stages - s) * size * each for s, each in enumerate(sample)])
    own = [min(batch.microbatches, job.schedule.k * (stages - s)) for s in range(stages)]
    start, starting = _fullest([held * batch.microbatch_size * each for held, each in zip(own, sample, strict=True)])
    if least > limit:
        yield Problem(
            ("tune", "memory_limit"),
            f"memory_limit = {show(job.tune.memory_limit)} fits no grouping: even k = 1 with micro-batches of {size} "
            f"needs {show_bytes(least - limit)} more on stage {fullest}",
            f'set it to at least "{round(least + 0.5)} B"',
        )
    elif start > limit:
        yield Problem(
            ("schedule", "k"),
            f"k = {job.schedule.k} with micro-batches of {batch.microbatch_size} needs {show_bytes(start - limit)} "
            f"more than memory_limit = {show(job.tune.memory_limit)} on stage {starting}",
            "start with a smaller k, or raise [tune] memory_limit",
        )


def _fullest(held: Sequence[float]) -> tuple[float, int]:
    """Return the most that a stage holds, and the first that does."""
    most = max(held)
    return most, held.index(most)
