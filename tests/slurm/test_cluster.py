"""The cluster that the other tests use: it lives beside another one, finds free ports, and leaves nothing running."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import Cluster
from slurm_processes import processes


@pytest.fixture
def second(cluster, tmp_path, monkeypatch):
    """A second cluster, whose first choice of ports are those of the first one."""
    taken = int(cluster.run("scontrol", "show", "config").stdout.partition("SlurmctldPort")[2].split()[1])
    find, choices = slurm_cluster._free_ports, iter([taken])
    monkeypatch.setattr(slurm_cluster, "_free_ports", lambda number: next(choices, None) or find(number))
    second = Cluster(tmp_path / "cluster", nodes=2, cpus=1)
    yield second
    second.close()


def test_a_cluster_whose_ports_are_taken_starts_on_others_beside_the_first(cluster, second):
    assert second.run("srun", "-N2", "-l", "hostname").stdout.count("\n") == 2
    assert len(cluster.run("sinfo", "-h", "-N", "-p", "main").stdout.splitlines()) == 32


def test_a_closed_cluster_leaves_no_process_behind(second):
    job_id = second.sbatch("--wrap", "sleep 1000 & wait", cwd=second.folder)
    second.wait_for(job_id, "RUNNING")
    daemons = [daemon.pid for daemon in second._daemons.values()]
    second.close()
    assert processes(second._mark) == []
    assert not [pid for pid in daemons if _lives(pid)]


def test_a_cluster_whose_tests_are_killed_ends_with_them(cluster, tmp_path):
    code = f"""
import sys, time
sys.path.insert(0, {str(Path(slurm_cluster.__file__).parent)!r})
from slurm_cluster import Cluster
cluster = Cluster({str(tmp_path / "cluster")!r}, nodes=1, cpus=1)
cluster.wait_for(cluster.sbatch("--wrap", "sleep 1000", cwd={str(tmp_path)!r}), "RUNNING")
print(cluster._mark, flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as tests:
        mark = tests.stdout.readline().strip()
        assert len(processes(mark)) >= 2
        tests.kill()
    deadline = time.monotonic() + 20
    while processes(mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
