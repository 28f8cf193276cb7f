"""What launcher and batch system say in environment variables; the only reader of SLURM_*, PMI*, PMIX_* and OMPI_*.

It must not start or import MPI: whether the ranks really form one world is found later, by comparing sizes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

LAUNCHER_PREFIXES = (
    "HYDI_",
    "HYDRA_",
    "MPI_LOCAL",
    "OMPI_",
    "PALS_",
    "PMIX_",
    "PMI_",
    "PMI2_",
    "PRTE_",
    "SLURM_PMI",
)
STEP_VARIABLES = (
    "SLURM_GTIDS",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID",
    "SLURM_MPI_TYPE",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_STEPID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_TASK_PID",
)
SHELL_STEPS = ("4294967290", "4294967291")
"""Slurm's numbers for the shell of an allocation and for the script of a batch job."""

EXIT_CODE_FILE = "HPCPIPE_EXIT_CODE_FILE"
"""Names the file in which rank 0 leaves the exit code that all ranks agreed on: srun reports that of whom it kills."""

SETTINGS = ("OMPI_MCA_", "OMPI_ALLOW_RUN_AS_ROOT", "PMIX_MCA_", "PRTE_MCA_")
"""What starts like a launcher's variable but is the user's own wish, which child processes keep."""


@dataclass(frozen=True, slots=True)
class World:
    """The place that a launcher gave to this process; `local_rank` is None where the launcher does not tell."""

    launcher: str
    rank: int
    size: int
    local_rank: int | None


@dataclass(frozen=True, slots=True)
class _Launcher:
    name: str
    rank: str
    size: str
    local_rank: tuple[str, ...]


# The launcher's own variables come before Slurm's: under mpiexec inside an allocation both are there, and srun that
# serves PMI sets both as well, with the same numbers.
_LAUNCHERS = (
    _Launcher("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    _Launcher("mpich", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID")),
    _Launcher("slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",)),
)


def world(environ: Mapping[str, str] | None = None) -> World | None:
    """Return the place that a launcher gave to this process, or None if it was started plainly.

    The script of a batch job, and a shell in an allocation, count as started plainly: nobody gave them a rank.
    """
    environ = os.environ if environ is None else environ
    step = _slurm_place(environ)
    for launcher in _LAUNCHERS:
        rank, size = _number(environ, launcher.rank), _number(environ, launcher.size)
        if rank is None or size is None or (launcher.name == "slurm" and step is None):
            continue
        served_by_slurm = launcher.name == "mpich" and step == (rank, size)
        names = (*launcher.local_rank, "SLURM_LOCALID") if served_by_slurm else launcher.local_rank
        local_rank = next((n for name in names if (n := _number(environ, name)) is not None), None)
        return World("slurm" if served_by_slurm else launcher.name, rank, size, local_rank)
    return None


def job_id(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the batch job's id, `12345`, or `12345_7` for an element of an array; None where it is no number.

    It becomes a part of paths, so nothing else may stand in it.
    """
    environ = os.environ if environ is None else environ
    array, element = _number(environ, "SLURM_ARRAY_JOB_ID"), _number(environ, "SLURM_ARRAY_TASK_ID")
    if array is not None and element is not None:
        return f"{array}_{element}"
    job = _number(environ, "SLURM_JOB_ID")
    return None if job is None else str(job)


def restart_count(environ: Mapping[str, str] | None = None) -> int:
    """Return how often the batch system has restarted this job."""
    environ = os.environ if environ is None else environ
    return _number(environ, "SLURM_RESTART_COUNT") or 0


def slurm_allocation_tasks(environ: Mapping[str, str] | None = None) -> int | None:
    """Return how many tasks the Slurm allocation was asked for, or None where Slurm does not say."""
    environ = os.environ if environ is None else environ
    return _number(environ, "SLURM_NTASKS") or _number(environ, "SLURM_NPROCS")


def slurm_cpus_per_task(environ: Mapping[str, str] | None = None) -> int | None:
    """Return how many cores each task was asked for, or None where Slurm does not say."""
    environ = os.environ if environ is None else environ
    return _number(environ, "SLURM_CPUS_PER_TASK")


def slurm_node(environ: Mapping[str, str] | None = None) -> str | None:
    """Return what Slurm calls this node, or None outside of it."""
    environ = os.environ if environ is None else environ
    return environ.get("SLURMD_NODENAME") or None


def slurm_mpi(environ: Mapping[str, str] | None = None) -> str | None:
    """Return how srun serves MPI to this step, such as "pmix", or None where it does not say."""
    environ = os.environ if environ is None else environ
    return environ.get("SLURM_MPI_TYPE") or None


def visible_gpus(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the GPUs that this process was given, or None where no variable tells."""
    environ = os.environ if environ is None else environ
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    on_node = gpus_on_node(environ)  # with --gpu-bind=none Slurm sets nothing else
    every = tuple(map(str, range(on_node))) or None
    return next((_list(environ[name]) for name in names if name in environ), every)


def step_gpus(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """Return the GPUs of this step on this node as Slurm numbers them, or None where it does not say."""
    environ = os.environ if environ is None else environ
    return _list(environ["SLURM_STEP_GPUS"]) if "SLURM_STEP_GPUS" in environ else None


def gpus_on_node(environ: Mapping[str, str] | None = None) -> int:
    """Return how many GPUs the Slurm job has on this node; 0 where it does not say."""
    environ = os.environ if environ is None else environ
    return _number(environ, "SLURM_GPUS_ON_NODE") or 0


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which a child process that starts MPI is a world of its own.

    With the launcher's variables left in, such a child would answer to the parent's launcher in the parent's place and
    end the whole job.
    """
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(SETTINGS) or not (name.startswith(LAUNCHER_PREFIXES) or name in STEP_VARIABLES)
    }


def submission_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment to submit a job from: without what an allocation around this process says of itself.

    sbatch hands its environment on, and an outer job's memory or task counts would clash with the new one's.
    """
    environ = os.environ if environ is None else environ
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {name: value for name, value in child_environment(environ).items() if name in kept or name[:6] != "SLURM_"}


def _slurm_place(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and size in an srun step.

    A batch script and the shell of an allocation are steps with a rank too, but nobody meant it.
    """
    rank, size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    shell = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "")) in SHELL_STEPS
    return None if rank is None or size is None or shell else (rank, size)


def _list(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip() and part.strip() != "NoDevFiles")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "").strip()
    return int(value) if value.isdecimal() else None
