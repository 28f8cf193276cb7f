"""What tensor parallelism asks of a job: a model that can be cut evenly, and settings that have an effect.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.faults import Problem
from hpcpipe.job.models import LanguageModel, Llama, Vlm
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job
from hpcpipe.job.words import listing, show

CHECKS = Rules()
_KINDS: frozenset[str] = frozenset({"gpt", "llama", "vlm", "synthetic"})


@CHECKS.needs("parallel.tensor", "model.kind")
def _the_model_can_be_cut(job: Job, _: int | None) -> Iterator[Problem]:
    if job.parallel.tensor > 1 and job.model.kind not in _KINDS:
        yield Problem(
            ("parallel", "tensor"),
            f"tensor = {job.parallel.tensor}, but the layers of a model of kind {show(job.model.kind)} are not cut",
            'set tensor = 1 and use pipeline and data for more ranks, or model kind = "gpt", "llama" or "vlm"',
        )


@CHECKS.needs("parallel.tensor", "model.heads", "model.dim", "model.vocab_size")
def _the_slices_are_even(job: Job, _: int | None) -> Iterator[Problem]:
    if isinstance(job.model, LanguageModel | Vlm):
        yield from _even(job, heads=job.model.heads, vocab_size=job.model.vocab_size)


@CHECKS.needs("parallel.tensor", "model.kv_heads", "model.mlp_dim")
def _the_slices_of_a_llama_are_even(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Llama)
    yield from _even(job, kv_heads=job.model.kv_heads, mlp_dim=job.model.mlp_dim)


@CHECKS.needs("parallel.tensor", "model.encoder_heads")
def _the_slices_of_an_encoder_are_even(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Vlm)
    yield from _even(job, encoder_heads=job.model.encoder_heads)


def _even(job: Job, **whole: int) -> Iterator[Problem]:
    tensor = job.parallel.tensor
    uneven = {name: size for name, size in whole.items() if size % tensor}
    if uneven:
        fitting = [n for n in range(1, tensor) if all(size % n == 0 for size in whole.values())]
        yield Problem(
            ("parallel", "tensor"),
            f"tensor = {tensor} does not divide {listing([f'{name} = {size}' for name, size in uneven.items()])}",
            f"set tensor to {listing([str(n) for n in fitting], 'or')}, or make {listing(list(uneven))} a multiple of "
            f"{tensor}",
        )


@CHECKS.needs("parallel.tensor", "schedule.agreement", "schedule.dispatch")
def _there_is_something_to_agree_on(job: Job, _: int | None) -> Iterator[Problem]:
    rule, dispatch = job.schedule.agreement, job.schedule.dispatch
    if rule == "common":
        return
    if job.parallel.tensor == 1:
        why, how = "tensor = 1: nobody is asked", "set [parallel] tensor to 2 or more"
    elif dispatch == "fixed":
        why, how = f"dispatch = {show(dispatch)}: the order is the same on all slices", 'set dispatch = "ready"'
    else:
        return
    yield Problem(
        ("schedule", "agreement"),
        f"agreement = {show(rule)} has no effect with {why}",
        f"remove agreement, or {how}",
    )


@CHECKS.needs("parallel.tensor", "comm.check_collectives")
def _there_are_collectives_to_check(job: Job, _: int | None) -> Iterator[Problem]:
    if job.comm.check_collectives and job.parallel.tensor == 1:
        yield Problem(
            ("comm", "check_collectives"),
            "check_collectives = true has no effect with tensor = 1: no collective belongs to a task",
            "remove it, or set [parallel] tensor to 2 or more",
        )
