"""The small job that the tests submit, and what makes it a real one."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

JOB = """\
[job]
name = "small"
steps = 2

[model]
kind = "synthetic"

[data]
kind = "synthetic"

[parallel]
pipeline = 2

[batch]
microbatches = 2

[schedule]
hint = "bf"

[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10

[events]
on = false

[slurm]
mpi = "pmi2"
nodes = 2
time = "00:20:00"
"""
REAL = {
    "model": 'kind = "gpt"\nlayers = 2\ndim = 16\nheads = 2\ncontext = 16',
    "data": 'kind = "text"\npath = "package:pydoc_data/topics.py"',
    "device": 'kind = "auto"',
}
"""What makes the emulated job a real one, which takes seconds longer to start."""


def real(text=JOB):
    """Return the job with a model that computes."""
    for table, content in REAL.items():
        text = re.sub(rf"\[{table}\]\n(?:[^\[\n].*\n)*", f"[{table}]\n{content}\n", text)
    return text


def small_environment(folder):
    """Make a Python environment that has the packages of this one without holding them, and return its folder."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    these = [path for path in sys.path if path.endswith("site-packages")]  # with what their own .pth files name
    (packages / "these.pth").write_text("\n".join(f"import site; site.addsitedir({path!r})" for path in these))
    for library in Path(sys.prefix, "lib").iterdir():  # where mpi4py looks for an MPI from wheels
        if not (folder / "lib" / library.name).exists():
            (folder / "lib" / library.name).symlink_to(library)
    return folder
