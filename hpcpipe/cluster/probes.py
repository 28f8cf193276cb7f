"""The looks that may crash or hang, each made in a child process: `python -m hpcpipe.cluster.probes NAME` prints JSON.

It says what is, never whether that is good; doctor.py judges.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICE_NUMBERS = (16, 1 << 20)
"""Numbers in a message: MPI sends short and long ones in different ways."""


def libraries() -> dict[str, Any]:
    """Import what a run needs besides MPI."""
    from importlib import import_module

    found: dict[str, Any] = {}
    for name in ("numpy", "h5py", "torch"):
        try:
            module = import_module(name)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        else:
            found[name] = {"version": str(module.__version__)}
            if name == "h5py":
                found[name]["hdf5"] = module.version.hdf5_version
            if name == "torch":
                found[name] |= {"threads": module.get_num_threads(), "gpus": module.cuda.device_count()}
    return found


def mpi() -> dict[str, Any]:
    """Start MPI in this process alone and ask what it is and what it can."""
    import ctypes

    from mpi4py import MPI

    from hpcpipe.cluster.gpu_aware import queries_of

    library = ctypes.CDLL(MPI.__file__)
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    levels = {
        MPI.THREAD_SINGLE: "SINGLE",
        MPI.THREAD_FUNNELED: "FUNNELED",
        MPI.THREAD_SERIALIZED: "SERIALIZED",
        MPI.THREAD_MULTIPLE: "MULTIPLE",
    }
    return {
        "library": " ".join(MPI.Get_library_version().splitlines()[0].split()),
        "vendor": MPI.get_vendor()[0],
        "standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": levels[MPI.Query_thread()],
        "mpi4py": __import__("mpi4py").__version__,
        "path": _path_of(library, "MPI_Init"),
        "queries": queries_of(library),
        "memory_kinds": kinds or "",
        "gtl": _maps_hold("libmpi_gtl_"),
    }


def device() -> dict[str, Any]:
    """Let MPI carry GPU buffers from this process to itself: one that cannot read a GPU's memory dies of it."""
    import torch
    from mpi4py import MPI

    if not torch.cuda.is_available():
        return {"skipped": "torch sees no GPU"}
    for number in DEVICE_NUMBERS:
        sent = torch.arange(number, dtype=torch.int32, device="cuda")
        got = torch.zeros_like(sent)
        torch.cuda.synchronize()  # MPI knows nothing of streams
        request = MPI.COMM_SELF.Irecv([MPI.buffer.fromaddress(got.data_ptr(), 4 * number), MPI.BYTE], source=0)
        MPI.COMM_SELF.Send([MPI.buffer.fromaddress(sent.data_ptr(), 4 * number), MPI.BYTE], dest=0)
        request.Wait()
        torch.cuda.synchronize()
        if not torch.equal(sent, got):
            return {"wrong": f"{4 * number} bytes arrived changed"}
    return {"exchanged": [4 * number for number in DEVICE_NUMBERS]}


def native() -> dict[str, Any]:
    """Import the native module, which refuses an MPI that is not the one it was built for."""
    from hpcpipe.collective import build_config

    return {name: str(value) for name, value in dict(build_config()).items()}


def world(folder: str) -> dict[str, Any]:
    """Join the world that this process's launcher offers, and look around together if it is as large as promised."""
    from hpcpipe.cluster.environment import world as place
    from hpcpipe.cluster.meeting import meet
    from hpcpipe.cluster.rank_probe import look

    comm, given = meet(), place()
    found = {"rank": comm.rank, "size": comm.size}
    together = given is not None and comm.size == given.size
    return found | (look(comm, folder) if together else {})


def hello() -> dict[str, Any]:
    """Meet the other ranks: every rank adds 1."""
    from mpi4py import MPI

    return {"size": MPI.COMM_WORLD.size, "sum": MPI.COMM_WORLD.allreduce(1)}


def files(folder: str) -> dict[str, Any]:
    """Do in a folder what a run does there: follow a log while it is written, and rename a synced file."""
    import subprocess
    import tempfile

    import h5py
    import numpy as np

    with tempfile.TemporaryDirectory(prefix=".hpcpipe-doctor-", dir=folder) as name:
        path, result = Path(name) / "log.h5", dict[str, Any]()
        try:
            log = h5py.File(path, "x", libver=("v110", "v110"), locking="best-effort")
        except OSError as error:
            if "lock file" not in str(error):
                raise
            result["no_locks"] = str(error)
            path.unlink(missing_ok=True)
            log = h5py.File(path, "x", libver=("v110", "v110"), locking=False)
        with log:
            rows = log.create_dataset("rows", shape=(0,), maxshape=(None,), chunks=(8192,), dtype="i8")
            log.swmr_mode = True
            rows.resize((3,))
            rows[:] = np.arange(3)
            rows.flush()
            reader = [sys.executable, "-m", "hpcpipe.cluster.probes", "follow", str(path)]
            seen = subprocess.run(reader, capture_output=True, text=True, timeout=15, check=False)
            result["follow"] = json.loads(seen.stdout)["rows"] if seen.returncode == 0 else _last_line(seen.stderr)
        synced = Path(name) / "whole.partial"
        with synced.open("wb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        synced.rename(Path(name) / "whole")
    return result


def follow(path: str) -> dict[str, Any]:
    """Read a log whose writer still has it open."""
    import h5py

    with h5py.File(path, "r", libver="latest", swmr=True, locking=False) as log:
        return {"rows": log["rows"][:].tolist()}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    probe.__name__: probe for probe in (libraries, mpi, device, native, world, hello, files, follow)
}


def _path_of(library: Any, symbol: str) -> str:
    """Return the file that holds a C function of a loaded library."""
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    info = Info()
    try:
        dladdr = ctypes.CDLL(None).dladdr
        found = dladdr(ctypes.cast(getattr(library, symbol), ctypes.c_void_p), ctypes.byref(info))
    except (AttributeError, OSError):
        return ""
    return info.file.decode(errors="replace") if found and info.file else ""


def _maps_hold(text: str) -> bool:
    try:
        return text in Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


if __name__ == "__main__":
    try:
        print(json.dumps(PROBES[sys.argv[1]](*sys.argv[2:])), flush=True)
    except Exception as trouble:
        print(json.dumps({"error": f"{type(trouble).__name__}: {trouble}"}), flush=True)
        sys.exit(1)
