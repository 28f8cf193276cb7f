"""Print the compile and link flags of one MPI compiler wrapper for meson.build; knows nothing of Meson itself.

The lines follow [tool], [compile] and [link]; all of Open MPI, MPICH, Intel MPI and Cray's mpicc answer to -show.
The wrapper is the first of: the argument, $MPICC, the one beside this interpreter (an MPI from wheels, found even when
an editable install rebuilds outside its activated environment), mpicc on PATH.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig


def main() -> None:
    """Choose the wrapper and print its flags."""
    wanted = (sys.argv[1] if len(sys.argv) > 1 else "") or os.environ.get("MPICC", "")
    if wanted:
        wrapper = shutil.which(wanted)
    else:
        wrapper = shutil.which("mpicc", path=sysconfig.get_path("scripts")) or shutil.which("mpicc")
    if wanted and not wrapper:
        sys.exit(f"the MPI compiler wrapper {wanted!r} was not found: set MPICC or -Dmpicc to one that exists")
    if not wrapper:
        return
    answer = subprocess.run([wrapper, "-show"], capture_output=True, text=True, check=True).stdout
    words = shlex.split(answer)[1:]
    compile_flags = [w for w in words if w.startswith(("-I", "-D", "-isystem")) or w == "-pthread"]
    link_flags = [
        w for w in words if w.startswith(("-L", "-l", "-Wl,")) or w == "-pthread" or w.endswith((".so", ".a"))
    ]
    print("[tool]", wrapper, "[compile]", *compile_flags, "[link]", *link_flags, sep="\n")


if __name__ == "__main__":
    main()
