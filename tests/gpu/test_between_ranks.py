"""On a real GPU that ranks share: the messages and rings that tests/mpi play, with its streams and its memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpipe.cluster.ask import ask

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
FILES = ("tests/mpi/test_gpu_messages.py", "tests/mpi/test_device_ring.py", "tests/mpi/test_device_buckets.py")


def _run(ranks: int, way: str) -> str:
    command = [ROOT / "tests" / "mpi" / "launch", str(ranks), sys.executable, "-m", "pytest", "-q", "-x"]
    options = ["--with-mpi", "--timeout=120", "--timeout-method=thread", *FILES]
    environ = {**os.environ, "HPCPIPE_TEST_ON_GPU": way, "LIMIT": "500"}
    done = subprocess.run(
        [*command, *options], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=550, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_through_pinned_memory_messages_and_sums_are_what_they_are_on_a_cpu(ranks: int) -> None:
    assert " passed" in _run(ranks, "staged")


@pytest.mark.parametrize("ranks", [2, 4])
def test_where_mpi_takes_gpu_memory_messages_and_sums_are_what_they_are_on_a_cpu(ranks: int) -> None:
    tried = ask("device", timeout_s=120)
    if "exchanged" not in tried:
        pytest.skip(f"not run: this MPI does not take GPU memory ({tried})")
    assert " passed" in _run(ranks, "direct")
