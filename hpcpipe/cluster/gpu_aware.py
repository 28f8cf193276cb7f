"""Find out whether this MPI takes the memory of GPUs: ask the library in its family's way, and try it in a child.

It judges nothing else; the decision is device/gpu_aware.py's.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcpipe.cluster.ask import Answer, ask
from hpcpipe.cluster.environment import World
from hpcpipe.cluster.meeting import gather, share
from hpcpipe.device.gpu_aware import GpuAware, agree, decide

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcpipe.job import Job

CRAY_SWITCH = "MPICH_GPU_SUPPORT_ENABLED"
_GPU_TYPES = {"cuda": 0, "rocm": 2}
"""MPICH's MPIX_GPU_SUPPORT_CUDA and MPIX_GPU_SUPPORT_HIP."""
_TRIAL_S = 60.0


def queries_of(library: Any) -> dict[str, int]:
    """Return what the library's own functions answer, 0 or 1 each, by name; MPI has been started.

    Open MPI, Intel MPI and MPICH have MPIX_Query_cuda_support; MPICH from 4.0 on, and Cray's, have
    MPIX_GPU_query_support(type, &answer).
    """
    answers = {}
    for name in ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support"):
        function = getattr(library, name, None)
        if function is not None:
            answers[name] = int(function())
    function = getattr(library, "MPIX_GPU_query_support", None)
    if function is not None:
        answer = ctypes.c_int(0)
        for kind, number in _GPU_TYPES.items():
            if function(ctypes.c_int(number), ctypes.byref(answer)) == 0:
                answers[f"MPIX_GPU_query_support({kind})"] = int(bool(answer.value))
    return answers


def says(mpi: Answer, environ: Mapping[str, str] | None = None) -> str:
    """Return "yes", "no" or "unknown": what an MPI, as the probe `mpi` has found it, says of GPU buffers.

    Cray's takes them if its GTL library is linked and a variable asks for it. Since MPI 4.1 an info key names the kinds
    of memory.
    """
    environ = os.environ if environ is None else environ
    answers, kinds = mpi.get("queries", {}), mpi.get("memory_kinds", "")
    cray = mpi.get("gtl", False) and environ.get(CRAY_SWITCH) == "1"
    if any(answers.values()) or "cuda" in kinds or "rocm" in kinds or cray:
        return "yes"
    return "no" if answers or kinds else "unknown"


def try_out(job: "Job", given: World) -> GpuAware | None:
    """Decide for this node, on the first of its ranks; None on the others and where torch sees no GPU.

    MPI may have been started, CUDA not: a child is made by vfork and exec, which copies nothing of this process. It may
    die of what it tries.
    """
    first = given.rank == 0 if given.local_rank is None else given.local_rank == 0
    if not first or not _has_gpu_driver():
        return None
    wanted = job.comm.cuda_aware
    if isinstance(wanted, bool):
        return decide(wanted, "unknown", {})
    found = ask("device", timeout_s=_TRIAL_S)
    if "skipped" in found:
        return None
    if keys := job.comm.by_nccl:
        # NVIDIA's guide to NCCL: MPI that moves GPU memory at the same time may wait for it, and it for MPI
        return GpuAware(False, f'[comm] {" and ".join(keys)} = "nccl", and both on GPU memory at once can deadlock')
    return decide(wanted, says(ask("mpi", timeout_s=_TRIAL_S)), found)


def decide_for_all(job: "Job", given: World, comm: "MPI.Intracomm") -> GpuAware | None:
    """Return what all ranks do, the same on each (collective); None where no GPU is used."""
    if job.device.kind not in ("auto", "cuda"):
        return None
    told = gather(comm, try_out(job, given))
    shared = share(comm, agree(None if each is None else GpuAware(*each) for each in told))
    return None if shared is None else GpuAware(*shared)


def nccl_without_gpus(job: "Job", found: GpuAware | None) -> str | None:
    """Return what is wrong where a job asks for NCCL and no rank has a GPU, or None."""
    keys = job.comm.by_nccl
    if not keys or found is not None:
        return None
    return (
        f'[comm] {" and ".join(keys)} = "nccl" needs a GPU for each rank, but torch sees none here; '
        'set it to "mpi", or start the job where there are GPUs (`hpcpipe doctor` says what is seen)'
    )


def _has_gpu_driver() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):  # GPUs are hidden from this run
        return False
    return any(Path(name).exists() for name in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))
