"""Find and end what a cluster has started; as a program: do so as soon as whoever started it is gone.

The processes of a cluster are known by a variable, since steps are nobody's children.
"""

import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def processes(mark, of_node=None):
    """Return the ids of the processes that have a variable, those of one node or all."""
    found = []
    node = f"SLURMD_NODENAME={of_node}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() not in variables:
            continue
        if of_node is None or node in variables or (b"slurmstepd" in words and _has_child_with(node, entry)):
            found.append(int(entry.name))
    return found


def _has_child_with(variable, entry):
    """Return whether a child of a process has the variable: a slurmstepd's own environment does not say where it is."""
    with suppress(OSError):
        for task in (entry / "task").iterdir():
            for child in (task / "children").read_text().split():
                if variable in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    return True
    return False


def kill(pids):
    """Kill processes, and unlink the shared memory that only they could have unlinked."""
    shared = set()
    for pid in pids:
        with suppress(OSError):
            shared |= set(re.findall(r" (/dev/shm/\S+)$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in shared:
        Path(path).unlink(missing_ok=True)


def end_all(mark):
    """Kill all processes that have a variable.

    One that is just becoming another program shows no variables, and a step may just have started another.
    """
    deadline, clean = time.monotonic() + 10, 0
    while clean < 3 and time.monotonic() < deadline:
        left = processes(mark)
        clean = 0 if left else clean + 1
        kill(left)
        time.sleep(0.05)


if __name__ == "__main__":
    sys.stdin.read()  # ends with the process that holds its other end
    end_all(sys.argv[1])
