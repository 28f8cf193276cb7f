"""What the fusion of `[tune]` asks of the rest of a job and of the machine.

One small function a rule.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from hpcpipe.job.device import Emulated
from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job

CHECKS = Rules()
_WHERE = ("tune", "fusion")


@CHECKS.needs("tune.fusion", "parallel.data", "device.kind")
def _there_are_gradients_to_fuse(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.fusion == "off":
        return
    if isinstance(job.device, Emulated):
        yield Problem(
            _WHERE,
            'fusion = "on" has no effect: an emulated device has no gradients, so there are no buckets',
            'set fusion = "off", or train a real model',
        )
    elif job.parallel.data == 1:
        yield Problem(
            _WHERE,
            'fusion = "on" has no effect with data = 1: one replica exchanges no gradients',
            'set fusion = "off", or [parallel] data to at least 2',
        )


@CHECKS.needs("tune.fusion")
def _what_looks_for_a_size_is_installed(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.fusion == "on" and find_spec("sklearn") is None:
        yield Problem(
            _WHERE,
            'fusion = "on" needs scikit-learn, which is not installed here',
            "pip install 'hpcpipe[tune]', or set a [comm] bucket_mb that suits",
        )


@CHECKS.needs("tune.fusion", "tune.grouping")
def _one_search_measures_at_a_time(job: Job, _: int | None) -> Iterator[Problem]:
    if job.tune.fusion == "on" and job.tune.grouping == "on":
        yield Problem(
            _WHERE,
            'fusion = "on" compares times of steps, which grouping = "on" changes meanwhile',
            "look for one after the other: leave one of them out, and write what the other has found into the job",
        )
