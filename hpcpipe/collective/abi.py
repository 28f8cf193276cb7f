"""The one door to the native module: opened only when it and mpi4py use the same MPI library.

Two MPI libraries in one process crash in ways that name neither; here the two are named. Knows nothing of buckets.
"""

import ctypes
import os
from typing import TYPE_CHECKING

from mpi4py import MPI

if TYPE_CHECKING:
    from hpcpipe._native import BuildConfig

_REMEDY = "rebuild hpcpipe with MPICC set to the compiler wrapper of the MPI that mpi4py uses"


class _SymbolInfo(ctypes.Structure):
    """What dladdr says of an address (Dl_info)."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def mpi4py_library_path() -> str:
    """Return the file of the MPI library that mpi4py calls, or '' where the loader cannot say."""
    function = ctypes.cast(ctypes.CDLL(MPI.__file__).MPI_Get_library_version, ctypes.c_void_p)
    info = _SymbolInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = [ctypes.c_void_p, ctypes.POINTER(_SymbolInfo)]
    return os.fsdecode(info.file) if dladdr(function, ctypes.byref(info)) and info.file else ""


def check_same_mpi(native: "BuildConfig", native_handle_bytes: int) -> None:
    """Raise ImportError, with one sentence, unless the native module and mpi4py use one MPI library.

    Parameters
    ----------
    native
        What the native module says of itself.
    native_handle_bytes
        Its size of an MPI_Comm: 4 in the MPICH family, 8 in Open MPI.
    """
    theirs = mpi4py_library_path()
    ours = native["mpi_library_path"]
    if os.path.realpath(ours) == os.path.realpath(theirs) and native_handle_bytes == MPI._sizeof(MPI.Comm):
        return
    raise ImportError(
        f"hpcpipe._native was built for {native['mpi_vendor']} {native['mpi_version']} and uses {ours} "
        f"({_short(native['mpi_library_version'])}), but mpi4py uses {theirs or 'an unknown library'} "
        f"({_short(MPI.Get_library_version())}): {_REMEDY}"
    )


def _short(library_version: str) -> str:
    """Return what comes before the details of the build: 'MPICH Version: 5.0.2', 'Open MPI v5.0.11'."""
    return " ".join(library_version.splitlines()[0].split(",")[0].split())


try:
    from hpcpipe import _native
except ImportError as error:
    raise ImportError(
        f"hpcpipe._native cannot be loaded beside mpi4py, which uses {mpi4py_library_path() or 'an unknown MPI'} "
        f"({error}): {_REMEDY}"
    ) from None

check_same_mpi(_native.build_config(), _native.comm_size_bytes())

native = _native
MpiError = _native.MpiError
build_config = _native.build_config
