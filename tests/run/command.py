"""Start hpcpipe as a user does: the installed command in a process of its own, always with a time limit."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "jobs" / "quickstart.toml"
SMALL = ("model.layers=4", "model.dim=32", "model.context=32", "data.seq_len=32", "batch.microbatch_size=2")
FAULTS = Path(__file__).parent / "faults"


def hpcpipe(*arguments, cwd, timeout=90, environment=None):
    """Run `hpcpipe ARGUMENTS` and return the finished process with its text output."""
    command = [sys.executable, "-m", "hpcpipe", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})},  # the machine may be busy
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def small(*overrides):
    """Return the options that make the quickstart small, and then some."""
    return [word for override in (*SMALL, *overrides) for word in ("--set", override)]
