"""Start hpcpipe as a user does: the installed command in a process of its own, always with a time limit."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / "jobs" / "quickstart.toml"
SMALL = ("model.layers=4", "model.dim=32", "model.context=32", "data.seq_len=32", "batch.microbatch_size=2")
FAULTS = Path(__file__).parent / "faults"
EMULATED = """
[job]
name = "hanging"
steps = 1000000
hang_timeout = 4
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
[parallel]
pipeline = 4
[schedule]
hint = "bf"
[batch]
microbatches = 6
"""
"""A job whose ranks start without torch and train until something ends them; one that hangs 4 s is ended."""


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


def is_alive(pid):
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
