"""What a device asks of the rest of a job, and what is allowed there but does less than it seems.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

CHECKS = Rules()


@CHECKS.needs("device.launch_ahead", "parallel.tensor")
def _slices_that_meet_in_emulated_tasks_take_one_at_a_time(job: Job, _: int | None) -> Iterator[Problem]:
    device, tensor = job.device, job.parallel.tensor
    if isinstance(device, Emulated) and device.launch_ahead > 1 and tensor > 1:
        yield Problem(
            ("device", "launch_ahead"),
            f"launch_ahead = {device.launch_ahead}, but the tasks of tensor = {tensor} slices end together on an "
            "emulated device, so none begins before",
            "leave launch_ahead out, or set tensor = 1",
        )


@CHECKS.needs("device.compile", "parallel.tensor")
def _collectives_are_not_compiled(job: Job, _: int | None) -> Iterator[Problem]:
    if getattr(job.device, "compile", False) and job.parallel.tensor > 1:
        yield Problem(
            ("device", "compile"),
            f"compile = true, but the layers of tensor = {job.parallel.tensor} slices meet in collectives, which "
            "torch.compile cannot hold",
            "set compile = false, or tensor = 1",
        )


def warnings_of(job: Job) -> Iterator[Problem]:
    """Yield what is allowed and yet does less than it seems. The job has no faults."""
    if getattr(job.device, "compile", False) and job.splits:
        yield Problem(
            ("device", "compile"),
            f"compile = true makes one backward of each layer, so hint = {show(job.schedule.hint)} has nothing to put "
            "off: weight gradients are computed with the input gradients (W folded into B), and W only adds them",
            'set compile = false to split the backward, or a hint that does not, such as "1f1b"',
        )
