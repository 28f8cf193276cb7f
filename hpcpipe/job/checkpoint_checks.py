"""What the table [checkpoint] and the rest of a job must satisfy together.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.checkpoint import Checkpoint
from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

CHECKS = Rules()


@CHECKS.needs("checkpoint.every", "device.kind")
def _there_is_something_to_save(job: Job, _: int | None) -> Iterator[Problem]:
    if job.checkpoint.on and isinstance(job.device, Emulated):
        yield Problem(
            ("checkpoint", "every"),
            f"every = {show(job.checkpoint.every)} has nothing to save: an emulated device has no parameters",
            'write every = "off", or remove [checkpoint]',
        )


@CHECKS.needs("checkpoint.every", "checkpoint.keep", "checkpoint.on_signal")
def _every_setting_of_checkpoints_has_an_effect(job: Job, _: int | None) -> Iterator[Problem]:
    settings = job.checkpoint
    if settings.on:
        return
    for key in ("keep", "on_signal"):
        value = getattr(settings, key)
        if value != Checkpoint.model_fields[key].default:
            yield Problem(
                ("checkpoint", key),
                f'{key} = {show(value)} has no effect with every = "off"',
                f'remove {key}, or say when to save: every = 100 (steps), every = "10min" or every = "end"',
            )
