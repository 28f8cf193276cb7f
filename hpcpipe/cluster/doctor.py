"""Does this environment fit? Each check looks at one thing and says what to do about it.

Whatever may crash or hang is looked at in a child process (probes.py); nothing is changed and nothing is left behind.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcpipe.cluster import environment
from hpcpipe.cluster.ask import Answer, ask, ask_in_place, ask_ranks
from hpcpipe.cluster.check import Check, Status
from hpcpipe.cluster.doctor_gpu import judge_gpu_buffers
from hpcpipe.cluster.doctor_ranks import check_ranks
from hpcpipe.cluster.mpiexec import MISSING, find_mpiexec
from hpcpipe.cluster.placement import ADVICE_PMI

FINEST_CLOCK_NS = 1_000
LITTLE_SPACE = 2**30
LITTLE_SHARED_MEMORY = 64 * 2**20


def run_checks(run_dir: Path = Path("runs"), *, joined: Answer | None = None) -> list[Check]:
    """Return every check of this environment.

    Parameters
    ----------
    run_dir
        Where runs will be written.
    joined
        What `join_launcher_world` answered.
    """
    with ThreadPoolExecutor(max_workers=2) as children:
        libraries = children.submit(ask, "libraries", timeout_s=90)
        mpi = children.submit(ask, "mpi", timeout_s=30)
        native = children.submit(ask, "native", timeout_s=60)
        files = children.submit(ask, "files", str(_existing(run_dir)), timeout_s=30)
        answers = [future.result() for future in (libraries, mpi, native, files)]
    gpus = answers[0].get("torch", {}).get("gpus", 0)
    answers.append(ask("device", timeout_s=60) if gpus and "error" not in answers[1] else {})
    return list(_checks(run_dir, joined, *answers))


def _checks(
    run_dir: Path, joined: Answer | None, libraries: Answer, mpi: Answer, native: Answer, files: Answer, device: Answer
) -> Iterator[Check]:
    yield _python()
    yield from _libraries(libraries)
    yield _mpi(mpi)
    yield _threads(mpi)
    yield from _mpiexec(mpi)
    yield _native(native, mpi)
    yield judge_gpu_buffers(mpi, libraries, device)
    yield _launcher(joined)
    if joined is not None and "ranks" in joined:
        yield from check_ranks(joined["ranks"], joined["links"])
    yield _cores()
    yield _shared_memory()
    yield from _run_folder(run_dir, files)
    yield _clock()


def join_launcher_world(run_dir: Path = Path("runs")) -> Answer | None:
    """Join the world that a launcher offers, in a child in this process's place; None where there is no launcher.

    Every rank must call it, and no rank may call it twice.
    """
    return ask_in_place("world", str(_existing(run_dir)), timeout_s=60) if environment.world() is not None else None


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", "pass", f"Python {version}, {sys.executable}")


def _libraries(answer: Answer) -> Iterator[Check]:
    for name in ("numpy", "h5py", "torch"):
        found = answer.get(name, answer)
        if "error" in found:
            yield Check(name, "fail", f"cannot be imported: {found['error']}", f"install it: pip install {name}")
        elif name == "h5py":
            yield Check(name, "pass", f"h5py {found['version']} with HDF5 {found['hdf5']}")
        elif name == "torch":
            gpus = found["gpus"]
            yield Check(name, "pass", f"torch {found['version']}, {gpus or 'no'} {_plural(gpus, 'GPU')}")
        else:
            yield Check(name, "pass", f"{name} {found['version']}")


def _mpi(answer: Answer) -> Check:
    if "error" in answer:
        hint = (
            "install an MPI and mpi4py (`pip install mpich mpi4py`), or load the site's MPI module and rebuild mpi4py"
        )
        return Check("mpi", "fail", f"MPI does not start: {answer['error']}", hint)
    return Check(
        "mpi", "pass", f"{answer['library']}, MPI {answer['standard']}, mpi4py {answer['mpi4py']}, {answer['path']}"
    )


def _threads(answer: Answer) -> Check:
    name = "mpi threads"
    if "error" in answer:
        return Check(name, "skip", "MPI does not start", "see the check mpi")
    level = answer["thread_level"]
    if level in ("MULTIPLE", "SERIALIZED"):
        return Check(name, "pass", f"MPI_THREAD_{level}")
    hint = (
        "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI with threads; the thread that sees a rank die cannot end the job"
    )
    return Check(name, "warn", f"MPI_THREAD_{level}", hint)


def _mpiexec(mpi: Answer) -> Iterator[Check]:
    given = environment.world()
    if given is not None:
        detail = f"not asked: {given.launcher} has started these ranks"
        yield Check("mpiexec", "skip", detail, "`hpcpipe doctor` outside the launcher tries it")
        return
    mpiexec = find_mpiexec()
    if mpiexec is None:
        hint = "under srun it is not needed; else `pip install mpich` or load the site's MPI module"
        yield Check("mpiexec", "fail", MISSING.partition(";")[0], hint)
        return
    where = f"{mpiexec.version or 'version unknown'}, {mpiexec.path}"
    families = {"mpich": "mpich", "intel": "mpich", "openmpi": "openmpi"}
    library = {"MPICH": "mpich", "Intel MPI": "mpich", "Open MPI": "openmpi"}.get(mpi.get("vendor", ""))
    launcher = families.get(mpiexec.vendor)
    other = f"put the mpiexec of {mpi.get('library', 'your MPI')} first on PATH, or rebuild mpi4py for this one"
    if library and launcher and library != launcher:
        yield Check("mpiexec", "fail", f"{where} belongs to another MPI than mpi4py's ({mpi['library']})", other)
        return
    answers = ask_ranks(mpiexec, 2, timeout_s=20)
    if isinstance(answers, str):
        hint = "try `mpiexec -n 2 hostname`; if that hangs too, the host's name or network interface is the usual cause"
        yield Check("mpiexec", "fail", f"{where}: two ranks did not meet: {answers}", hint)
    elif [answer.get("sum") for answer in answers] != [2, 2]:
        sizes = ", ".join(str(answer.get("size", answer.get("error"))) for answer in answers)
        yield Check("mpiexec", "fail", f"{where}: two ranks see worlds of size {sizes}", other)
    else:
        yield Check("mpiexec", "pass", f"{where}; 2 ranks met")


def _native(answer: Answer, mpi: Answer) -> Check:
    name = "native module"
    rebuild = (
        "rebuild it for this MPI: `make venv`, or `pip install --no-build-isolation --force-reinstall --no-deps .`"
    )
    if "error" in answer:
        return Check(name, "fail", answer["error"], rebuild)
    built, used = answer.get("mpi_library_path", ""), mpi.get("path", "")
    if built and used and Path(built).resolve() != Path(used).resolve():
        return Check(name, "warn", f"built against {built}, but mpi4py uses {used}", rebuild)
    return Check(name, "pass", f"same MPI as mpi4py, built by {answer.get('compiler', 'an unknown compiler')}")


def _launcher(joined: Answer | None) -> Check:
    """Judge whether the ranks of a launcher have found each other."""
    name, given, job = "launcher", environment.world(), environment.job_id()
    if given is not None and joined is not None:
        if "error" in joined:
            return Check(name, "fail", f"MPI does not start under {given.launcher}: {joined['error']}", ADVICE_PMI)
        size = joined["size"]
        if size != given.size:
            detail = f"{given.launcher} started {given.size} tasks, but MPI sees a world of {size}"
            return Check(name, "fail", detail, ADVICE_PMI)
        return Check(name, "pass", f"{given.launcher} started {size} {_plural(size, 'rank')}, and MPI sees them all")
    if job is None:
        return Check(name, "pass", "started plainly; `hpcpipe run` starts its own ranks")
    tasks = environment.slurm_allocation_tasks()
    asked = f", {tasks} {_plural(tasks, 'task')}" if tasks else ""
    hint = "to look at the step's MPI too: srun hpcpipe doctor"
    return Check(name, "pass", f"in Slurm job {job}{asked}, outside an srun step", hint)


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    detail = f"this process may use {cores} {_plural(cores, 'core')}"
    promised = environment.slurm_cpus_per_task()
    given = environment.world()
    if given is not None and promised and promised > cores:
        hint = "write --cpus-per-task on the srun line too; since Slurm 22.05 srun does not inherit it from sbatch"
        return Check("cores", "warn", f"{detail}, but {promised} per task were asked for", hint)
    if given is not None and given.local_rank is not None and given.local_rank >= cores > 1:
        return Check(
            "cores",
            "warn",
            f"{detail} and shares them with more ranks",
            'poll = "auto" sleeps; give each rank its core',
        )
    return Check("cores", "pass", f'{detail}; with more ranks than that, poll = "auto" sleeps instead of spinning')


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("shared memory", "skip", "no /dev/shm here", "ranks of one host then talk over the network")
    detail = f"{_size(free)} free in /dev/shm"
    if free < LITTLE_SHARED_MEMORY:
        return Check(
            "shared memory", "warn", detail, "ranks of one host exchange data there; in a container: --shm-size=1g"
        )
    return Check("shared memory", "pass", detail)


def _run_folder(run_dir: Path, answer: Answer) -> Iterator[Check]:
    folder = _existing(run_dir)
    move = "choose another folder: [job] run_dir, or `hpcpipe run --run-dir`"
    if not os.access(folder, os.W_OK):
        yield Check("run folder", "fail", f"{folder} cannot be written", move)
    else:
        free = shutil.disk_usage(folder).free
        status: Status = "warn" if free < LITTLE_SPACE else "pass"
        yield Check(
            "run folder", status, f"{_size(free)} free in {folder.absolute()}", move if status == "warn" else ""
        )
    name = "event log"
    lock = "where the file system has no locks: export HDF5_USE_FILE_LOCKING=FALSE; or " + move
    if "error" in answer:
        yield Check(name, "fail", f"a log cannot be written in {folder}: {answer['error']}", lock)
    elif answer["follow"] != [0, 1, 2]:
        yield Check(name, "warn", f"a log cannot be read while it is written: {answer['follow']}", lock)
    elif "no_locks" in answer:
        detail = f"files cannot be locked here ({answer['no_locks']}); logs are written without locks"
        hint = (
            "nothing is wrong with that: each log has one writer; other HDF5 programs may need "
            "`export HDF5_USE_FILE_LOCKING=FALSE`"
        )
        yield Check(name, "warn", detail, hint)
    else:
        yield Check(name, "pass", "can be read while it is written; files are synced and renamed")


def _clock() -> Check:
    now: Callable[[], int] = time.monotonic_ns
    steps = []
    for _ in range(1000):
        start = now()
        while (end := now()) == start:
            pass
        steps.append(end - start)
    finest = min(steps)
    detail = f"{time.get_clock_info('monotonic').implementation}, finest step {finest} ns"
    if finest > FINEST_CLOCK_NS:
        return Check(
            "clock",
            "warn",
            detail,
            "tasks shorter than that cannot be told apart; a virtual machine's clock source may be changed",
        )
    return Check("clock", "pass", detail)


def _existing(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    folder = folder.absolute()
    return next((f for f in (folder, *folder.parents) if f.is_dir()), Path("/"))


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else noun + "s"
