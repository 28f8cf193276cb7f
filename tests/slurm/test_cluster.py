"""The cluster that the other tests use: it lives beside another one, finds free ports, and leaves nothing running."""

import os

import pytest
import slurm_cluster
from slurm_cluster import Cluster


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
    assert second._processes() == []
    assert not [pid for pid in daemons if _lives(pid)]


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
