"""Real multi-host runs: a node daemon on each emulated host, ranks that meet over TCP, a host that dies."""

import json
import sys
import time

import pytest
import training
from slurm_jobs import JOB, ROOT, small_environment
from stories import end_of, story

pytestmark = pytest.mark.timeout(240)
SMALL = ("model.layers=4", "model.dim=32", "model.context=32", "data.seq_len=32", "job.steps=3", 'slurm.mpi="pmi2"')
SHARED = 'comm.poll="sleep"'  # a rank that is alone on its host would spin, and these hosts have the same cores


def _submit(hosts, folder, job, *sets):
    words = [word for one in sets for word in ("--set", one)]
    return hosts.run(sys.executable, "-m", "hpcpipe", "submit", job, *words, cwd=folder).stdout.strip()


def test_the_quickstart_trains_across_four_hosts_over_tcp(hosts, tmp_path):
    job_id = _submit(hosts, tmp_path, ROOT / "jobs" / "quickstart.toml", *SMALL, SHARED, "slurm.nodes=4")
    ended = hosts.wait_for_end(job_id, timeout=200)
    log = (tmp_path / "runs" / "quickstart" / f"slurm-{job_id}.out").read_text()
    assert ended["JobState"] == "COMPLETED", log
    assert "step 3/3" in log
    ranks = json.loads((tmp_path / "runs" / "quickstart" / "latest" / "ranks.json").read_text())
    assert [rank["host"] for rank in ranks] == ["h1", "h2", "h3", "h4"]


def test_the_doctor_sees_every_host_and_a_folder_that_is_not_shared(hosts, tmp_path):
    doctor = (sys.executable, "-m", "hpcpipe", "doctor", "--json", "--run-dir")
    words = ("srun", "-N4", "-n4", "--mpi=pmi2", *doctor)
    done = hosts.run(*words, "/dev/shm", cwd=tmp_path, check=False, timeout=150)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode != 0
    assert checks["mpi on all nodes"]["detail"].startswith("the same on 4 nodes")
    assert checks["shared folder"]["status"] == "fail"
    assert "h2, h3, h4" in checks["shared folder"]["detail"]


def test_each_host_runs_its_own_copy_of_the_environment(hosts, tmp_path):
    environment = small_environment(tmp_path / "an environment")
    (tmp_path / "job.toml").write_text(JOB)
    words = ('slurm.stage_to="/dev/shm"', "slurm.broadcast=true", "slurm.prologue=['ls /dev/shm > before.txt']")
    options = [word for one in words for word in ("--set", one)]
    python = environment / "bin" / "python"
    job_id = hosts.run(python, "-m", "hpcpipe", "submit", "job.toml", *options, cwd=tmp_path).stdout.strip()
    ended = hosts.wait_for_end(job_id)
    log = (tmp_path / "runs" / "small" / f"slurm-{job_id}.out").read_text()
    assert ended["JobState"] == "COMPLETED", log
    assert f"2 nodes have their own copies of the environment in /dev/shm/hpcpipe-{job_id}-0" in log
    ran = json.loads((tmp_path / "runs" / "small" / f"{job_id}-0" / "environment.json").read_text())
    assert ran["executable"] == f"/dev/shm/hpcpipe-{job_id}-0/bin/python"
    left = hosts.run("srun", "-N4", "-w", "h[1-4]", "bash", "-c", "ls -d /dev/shm/hpcpipe-* || true").stdout
    assert left == ""


@story(on="hosts")
def a_host_dies(it):
    training.begin(it, training.STEPS, 'slurm.extra=["--exclude=h[1-4]", "--exclusive"]')
    while len(it.steps(restart=0)) < 3 * training.EVERY:
        time.sleep(0.1)
    it.cluster.kill_host(it.hosts(restart=0)[1])  # the other one has the batch script
    return training.end(it, training.STEPS)


@end_of("a_host_dies")
def test_a_training_whose_host_dies_goes_on_from_its_last_checkpoint_on_other_hosts(it):
    training.check(it, restarts=1)
    assert it.starts[1]["first_step"] % training.EVERY == 0 < it.starts[1]["first_step"]
    assert it.hosts[0][1] not in it.hosts[1]
