"""Find the mpiexec that belongs to this interpreter's MPI, and what it has to be told.

It must not start ranks; launch.py does.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcpipe.cluster.environment import child_environment

MISSING = (
    "no mpiexec was found beside this Python nor on PATH; install one (`pip install mpich`), load the site's MPI "
    "module, or start the ranks yourself with srun"
)


@dataclass(frozen=True, slots=True)
class Mpiexec:
    """A launcher: where it is, whose it is ("mpich", "openmpi", "intel" or "unknown"), and how it calls its version."""

    path: Path
    vendor: str
    version: str

    def command(self, program: Sequence[str], ranks: int) -> list[str]:
        """Return the command line that starts so many ranks of a program, more than there are cores if need be."""
        extra = {"openmpi": ["--oversubscribe"], "mpich": ["-print-all-exitcodes"]}.get(self.vendor, [])
        return [str(self.path), *extra, "-n", str(ranks), *program]

    def environment(self) -> dict[str, str]:
        """Return the environment to start it in: this one without what another launcher has left in it."""
        environ = child_environment()
        if self.vendor == "openmpi" and os.geteuid() == 0:  # it refuses root unless told twice
            environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return environ


def folders() -> list[Path]:
    """Return where the scripts of this interpreter are: an MPI from wheels puts its launcher there."""
    return [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]


def find_mpiexec() -> Mpiexec | None:
    """Return this interpreter's mpiexec, else the one on PATH, else None."""
    beside = (folder / "mpiexec" for folder in folders())
    found = next((path for path in beside if os.access(path, os.X_OK)), None) or shutil.which("mpiexec")
    return _identify(Path(found)) if found else None


def _identify(path: Path) -> Mpiexec:
    command = [str(path), "--version"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=20, check=False, env=child_environment()
        )
        said = result.stdout + result.stderr
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "Intel" in said:
        return Mpiexec(path, "intel", lines[0])
    if "HYDRA" in said:
        version = next((line.split(":")[1].strip() for line in lines if line.startswith("Version:")), "")
        return Mpiexec(path, "mpich", f"Hydra {version}".strip())
    if any(word in said for word in ("OpenRTE", "Open MPI", "PRRTE", "prterun")):
        return Mpiexec(path, "openmpi", lines[0])
    return Mpiexec(path, "unknown", lines[0] if lines else "")
