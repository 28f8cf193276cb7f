"""A library to preload whose flock fails as that of a file system without locks; the rebuild of an editable install,
which locks its own script, is let through.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int flock(int fd, int operation)
{
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0 && strstr(path, "ninja-in-turn"))
        return (int)syscall(SYS_flock, fd, operation);
    errno = atoi(getenv("FLOCK_ERRNO"));
    return -1;
}
"""


def failing_flock(folder: Path) -> Path:
    """Return the library; it takes the error from FLOCK_ERRNO. Skips where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "flock.c", folder / "flock.so"
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library
