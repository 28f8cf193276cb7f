"""What the table [checkpoint] and the rest of a job must satisfy together.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules, without_effect
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
    if not job.checkpoint.on:
        when = 'say when to save: every = 100 (steps), every = "10min" or every = "end"'
        yield from without_effect(job, "checkpoint", ("keep", "on_signal"), because='every = "off"', else_=when)
