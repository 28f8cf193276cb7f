"""Judge whether MPI takes GPU buffers by what it says and by what came of a real exchange in a child process.

It must not ask by itself: the exchange may crash.
"""

from hpcpipe.cluster.ask import Answer
from hpcpipe.cluster.check import Check
from hpcpipe.cluster.gpu_aware import says

NAME = "gpu-aware mpi"
HOST_MEMORY = (
    "messages go through host memory; for direct ones load the site's CUDA-aware MPI "
    "(on Cray the GTL library and MPICH_GPU_SUPPORT_ENABLED=1)"
)
CRASH = (
    "do not hand it GPU buffers; it may lack: Cray MPICH the GTL library and MPICH_GPU_SUPPORT_ENABLED=1, Open MPI "
    "OMPI_MCA_opal_cuda_support=1 and a UCX built with CUDA, Intel MPI I_MPI_OFFLOAD=1"
)
WRONG = "send nothing from GPU memory with it; UCX_MEMTYPE_CACHE=n is the usual cure"


def judge_gpu_buffers(mpi: Answer, libraries: Answer, device: Answer) -> Check:
    """Return the check; `device` is the answer of the exchange, empty where none was tried."""
    if "error" in mpi:
        return Check(NAME, "skip", "MPI does not start", "see the check mpi")
    promised = _says(mpi)
    gpus = libraries.get("torch", {}).get("gpus", 0)
    said = f"MPI says of GPU buffers: {promised}"
    if not gpus:
        return Check(NAME, "skip", f"torch sees no GPU here; {said}", "ask on a node with a GPU")
    there = f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
    if "exchanged" in device:
        sizes = " and ".join(f"{size:,} bytes" for size in device["exchanged"])
        return Check(NAME, "pass", f"{sizes} went from GPU to GPU memory by MPI; {said}; {there}")
    if "wrong" in device:
        return Check(NAME, "fail", f"a message between GPU buffers came to harm: {device['wrong']}; {said}", WRONG)
    tried = device.get("error") or device.get("skipped") or "not tried"
    if promised == "yes":
        return Check(NAME, "fail", f"{said}, but an exchange of GPU buffers failed: {tried}; {there}", CRASH)
    return Check(NAME, "warn", f"{said}; an exchange of GPU buffers failed: {tried}; {there}", HOST_MEMORY)


def _says(mpi: Answer) -> str:
    said = says(mpi)
    return "unknown (this MPI cannot be asked)" if said == "unknown" else said
