"""The doctor under srun: it looks at all ranks and nodes together, and at worlds that do not come about."""

import json
import sys

DOCTOR = (sys.executable, "-m", "hpcpipe", "doctor", "--json")


def test_on_two_nodes_every_check_of_the_ranks_is_there_and_none_fails(cluster, tmp_path):
    words = ("-N2", "-n4", "--ntasks-per-node=2", "--gpus-per-node=2", "--mpi=pmi2")
    done = cluster.run("srun", *words, *DOCTOR, cwd=tmp_path, timeout=110)
    document = json.loads(done.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert document["ok"]
    assert checks["launcher"]["detail"] == "slurm started 4 ranks, and MPI sees them all"
    assert checks["mpi on all nodes"]["detail"].startswith("the same on 2 nodes: ")
    assert checks["gpus of the ranks"]["detail"] == "every rank has a GPU of its own"
    assert checks["shared folder"]["detail"] == "files where runs go are seen on 2 nodes"
    assert checks["files of all nodes"]["detail"].startswith("written, synced, locked and renamed from 2 nodes")
    assert "FI_PROVIDER=tcp" in checks["transports"]["detail"]
    assert {"cores of the ranks", "limits", "clocks", "links"} <= set(checks)
    assert all(check["hint"] for check in document["checks"] if check["status"] in ("warn", "fail"))
    assert [(link["from"], link["to"]) for link in document["links"]] == [(0, 1), (1, 2), (2, 3)]
    assert all(link["latency_us"] > 0 and link["mb_per_s"] > 0 for link in document["links"])
    assert list(tmp_path.iterdir()) == []


def test_two_ranks_on_one_gpu_fail_the_doctor(cluster, tmp_path):
    words = ("-N1", "-n2", "--gpus-per-node=2", "--gpu-bind=map_gpu:1,1", "--mpi=pmi2")
    done = cluster.run("srun", *words, *DOCTOR, cwd=tmp_path, timeout=110, check=False)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}["gpus of the ranks"]
    assert (done.returncode, found["status"]) == (3, "fail")
    assert "both compute on GPU 1" in found["detail"]


def test_tasks_that_are_worlds_of_their_own_fail_the_doctor(cluster, tmp_path):
    done = cluster.run("srun", "-n2", "--mpi=none", *DOCTOR, cwd=tmp_path, timeout=110, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"]) == (3, False)
    found = {check["name"]: check for check in document["checks"]}["launcher"]
    assert found["detail"] == "slurm started 2 tasks, but MPI sees a world of 1"
    assert "srun --mpi=pmi2" in found["hint"]
