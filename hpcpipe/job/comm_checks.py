"""What `[comm]` says of GPUs must have an effect, and what it needs must be there.

One small function a rule.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

CHECKS = Rules()
_WITHOUT_GPU: frozenset[str] = frozenset({"cpu", "emulated"})


@CHECKS.needs("comm.cuda_aware", "device.kind")
def _what_mpi_takes_matters_to_gpus(job: Job, _: int | None) -> Iterator[Problem]:
    wanted, kind = job.comm.cuda_aware, job.device.kind
    if wanted != "auto" and kind in _WITHOUT_GPU:
        yield Problem(
            ("comm", "cuda_aware"),
            f"cuda_aware = {show(wanted)} has no effect with [device] kind = {show(kind)}: no message lies on a GPU",
            'remove it, or set [device] kind = "cuda"',
        )


@CHECKS.needs("comm.dp_collectives", "parallel.data", "device.kind")
def _replicas_can_use_nccl(job: Job, _: int | None) -> Iterator[Problem]:
    if job.comm.dp_collectives == "nccl":
        yield from _problems_with_nccl(job, "dp_collectives", "data", job.parallel.data)


@CHECKS.needs("comm.tp_collectives", "parallel.tensor", "device.kind")
def _slices_can_use_nccl(job: Job, _: int | None) -> Iterator[Problem]:
    if job.comm.tp_collectives == "nccl":
        yield from _problems_with_nccl(job, "tp_collectives", "tensor", job.parallel.tensor)


@CHECKS.needs("comm.tp_collectives", "comm.check_collectives")
def _collectives_that_are_checked_go_over_mpi(job: Job, _: int | None) -> Iterator[Problem]:
    if job.comm.tp_collectives == "nccl" and job.comm.check_collectives:
        yield Problem(
            ("comm", "check_collectives"),
            'check_collectives = true compares tasks by collectives of MPI, but tp_collectives = "nccl"',
            'set tp_collectives = "mpi" to look for a mismatch, or remove check_collectives',
        )


def _problems_with_nccl(
    job: Job, key: Literal["dp_collectives", "tp_collectives"], parallel: str, ranks: int
) -> Iterator[Problem]:
    place, kind = ("comm", key), job.device.kind
    if ranks == 1:
        yield Problem(
            place,
            f'{key} = "nccl" has no effect with {parallel} = 1: nobody is summed with',
            f"remove it, or set [parallel] {parallel} to 2 or more",
        )
    elif kind in _WITHOUT_GPU:
        yield Problem(
            place,
            f'{key} = "nccl" needs GPUs, but [device] kind = {show(kind)}',
            f'set [device] kind = "cuda", or {key} = "mpi"',
        )
    elif getattr(job.device, "share", False):
        yield Problem(
            place,
            f'{key} = "nccl" needs a GPU for each rank, but [device] share = true lets ranks share one',
            f'remove share, or set {key} = "mpi"',
        )
    elif find_spec("cupy") is None:
        yield Problem(
            place,
            f'{key} = "nccl" needs the package cupy, which is not installed here',
            f"pip install 'hpcpipe[cuda]', or set {key} = \"mpi\"",
        )
