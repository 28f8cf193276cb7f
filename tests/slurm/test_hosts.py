"""Real multi-host runs: a node daemon on each of four emulated hosts, ranks that meet over TCP, a host that dies."""

import json
import sys
import time

import pytest
import slurm_cluster
import slurm_hosts
from conftest import JOB, ROOT

pytestmark = pytest.mark.timeout(240)
TCP = 'slurm.env={ UCX_TLS = "tcp,self", UCX_NET_DEVICES = "eth0" }'
SMALL = ("model.layers=4", "model.dim=32", "model.context=32", "data.seq_len=32", "job.steps=3", 'slurm.mpi="pmi2"')


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    if (why := slurm_cluster.missing() or slurm_hosts.missing()) is not None:
        pytest.skip(why)
    cluster = slurm_hosts.HostCluster(tmp_path_factory.mktemp("hosts") / "cluster", hosts=4)
    yield cluster
    cluster.close()


def _submit(hosts, folder, job, *sets):
    words = [word for one in sets for word in ("--set", one)]
    return hosts.run(sys.executable, "-m", "hpcpipe", "submit", job, *words, cwd=folder).stdout.strip()


def test_the_quickstart_trains_across_four_hosts_over_tcp(hosts, tmp_path):
    job_id = _submit(hosts, tmp_path, ROOT / "jobs" / "quickstart.toml", *SMALL, TCP, "slurm.nodes=4")
    ended = hosts.wait_for_end(job_id, timeout=200)
    log = (tmp_path / "runs" / "quickstart" / f"slurm-{job_id}.out").read_text()
    assert ended["JobState"] == "COMPLETED", log
    assert "step 3/3" in log
    ranks = json.loads((tmp_path / "runs" / "quickstart" / "latest" / "ranks.json").read_text())
    assert [rank["host"] for rank in ranks] == ["h1", "h2", "h3", "h4"]


def test_the_doctor_sees_every_host_and_a_folder_that_is_not_shared(hosts, tmp_path):
    doctor = (sys.executable, "-m", "hpcpipe", "doctor", "--json", "--run-dir")
    environment = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    words = ("srun", "-N4", "-n4", "--mpi=pmi2", *doctor)
    done = hosts.run(*words, "/dev/shm", cwd=tmp_path, check=False, timeout=150, environment=environment)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode != 0
    assert checks["mpi on all nodes"]["detail"].startswith("the same on 4 nodes")
    assert checks["shared folder"]["status"] == "fail"
    assert "h2, h3, h4" in checks["shared folder"]["detail"]


def test_a_host_that_dies_ends_this_start_and_the_job_goes_on_elsewhere(hosts, tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    job_id = _submit(hosts, tmp_path, "job.toml", TCP, "job.steps=1000000")
    runs = tmp_path / "runs" / "small"
    _wait_for_steps(runs / f"{job_id}-0", hosts, job_id)
    first = json.loads((runs / f"{job_id}-0" / "ranks.json").read_text())
    hosts.kill_host(first[1]["host"])
    _wait_for_steps(runs / f"{job_id}-1", hosts, job_id)
    second = json.loads((runs / f"{job_id}-1" / "ranks.json").read_text())
    assert first[1]["host"] not in [rank["host"] for rank in second]
    assert hosts.job(job_id)["Restarts"] == "1"
    hosts.run("scancel", job_id)


def _wait_for_steps(run, hosts, job_id, timeout=150):
    deadline = time.monotonic() + timeout
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        if time.monotonic() > deadline:
            log = run.parent / f"slurm-{job_id}.out"
            raise AssertionError(f"{hosts.job(job_id)}\n{log.read_text() if log.exists() else ''}")
        time.sleep(0.2)
