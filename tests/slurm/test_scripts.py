"""The scripts that people copy: clean, accepted by a Slurm with 128 GPUs, and run for real at a smaller size."""

import json
import sys
from pathlib import Path

import pytest
from conftest import find_shellcheck
from slurm_jobs import JOB, ROOT, real, small_environment

SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))
SMALL = ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1", "--time=10")


@pytest.fixture
def submit(cluster, job_file, tmp_path):
    """Submit a script from a folder with a job and a .venv, for an srun that serves PMI-2; return the job's id."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f"export PATH='{Path(sys.executable).parent}':$PATH\n")
    fitting = {"MPI": "pmi2", "CPU_BIND": ""}

    def call(*words, **variables):
        script = next(word for word in words if str(word).endswith(".sh"))
        options = [ROOT / "slurm" / word if word == script else word for word in words]
        return cluster.sbatch(*options, cwd=tmp_path, environment={**fitting, **variables})

    return call


def test_the_scripts_are_clean(cluster):
    assert len(SCRIPTS) == 5
    cluster.run(find_shellcheck(), *SCRIPTS)


def test_the_large_script_fits_32_nodes_of_4_gpus_and_its_job(cluster, hpcpipe, tmp_path):
    said = cluster.run("sbatch", "--test-only", ROOT / "slurm" / "train_128gpu.sh", cwd=tmp_path).stderr
    assert "using 1024 processors" in said  # 32 nodes x 4 ranks x 8 cores
    assert "n[1-32]" in said
    script = tmp_path / "rendered.sh"
    script.write_text(hpcpipe("submit", ROOT / "jobs" / "gpt_128.toml", "--dry-run").stdout)
    said = cluster.run("sbatch", "--test-only", script, cwd=tmp_path).stderr
    assert "using 1024 processors" in said
    assert "n[1-32]" in said


def test_the_large_script_asks_for_more_gpus_than_a_smaller_cluster_has(cluster, tmp_path):
    done = cluster.run(
        "sbatch", "--test-only", "--gpus-per-node=5", ROOT / "slurm" / "train_128gpu.sh", cwd=tmp_path, check=False
    )
    assert done.returncode != 0


def test_the_large_script_trains_and_analyses_at_the_size_it_is_given(cluster, submit, tmp_path):
    job_id = submit(*SMALL, "train_128gpu.sh", "job.toml", "--set", "events.on=true", "--set", "slurm.gpus_per_node=1")
    assert cluster.wait_for_end(job_id)["JobState"] == "COMPLETED", _log(tmp_path)
    said = _log(tmp_path)
    assert f"job {job_id}, restart 0: 2 ranks on n[" in said
    assert "step 2/2" in said
    assert said.count("critical path") == 2  # of the run itself and of the analysis at the end
    assert cluster.job(job_id)["Requeue"] == "1"


def test_the_large_script_gives_each_node_its_own_environment_where_it_is_asked_to(cluster, submit, tmp_path):
    environment, stage = small_environment(tmp_path / "small"), tmp_path / "of the node"
    stage.mkdir()
    sizes = ("--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=0", "--cpus-per-task=1", "--time=10")
    job_id = submit(*sizes, "train_128gpu.sh", "job.toml", STAGE_TO=str(stage), TO_STAGE=str(environment))
    assert cluster.wait_for_end(job_id)["JobState"] == "COMPLETED", _log(tmp_path)
    ran = json.loads((tmp_path / "runs" / "small" / "latest" / "environment.json").read_text())
    assert ran["executable"] == str(stage / f"hpcpipe-{job_id}-0" / "bin" / "python")
    assert list(stage.iterdir()) == []


def test_the_script_for_one_node_trains(cluster, submit, tmp_path):
    options = ("--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1")
    (tmp_path / "job.toml").write_text(real())
    job_id = submit(*options, "train_1node.sh", "job.toml", "--set", "slurm.nodes=1")
    assert cluster.wait_for_end(job_id)["JobState"] == "COMPLETED", _log(tmp_path)
    assert "step 2/2" in _log(tmp_path)


def test_the_script_for_debugging_asks_the_doctor_and_trains(cluster, submit, tmp_path):
    job_id = submit("--ntasks-per-node=1", "--cpus-per-task=1", "train_cpu_debug.sh", "job.toml")
    assert cluster.wait_for_end(job_id)["JobState"] == "COMPLETED", _log(tmp_path)
    said = _log(tmp_path)
    assert "slurm started 2 ranks, and MPI sees them all" in said
    assert "step 5/5" in said or "5 emulated steps" in said


def test_elements_of_the_sweep_get_their_line_and_no_shell_reads_it(cluster, submit, tmp_path):
    lines = [
        "--set job.steps=1 --set 'job.name=a b $(touch pwned)'",
        '--set job.steps=1 --set "job.name=c;touch pwned"',
    ]
    (tmp_path / "sweep.txt").write_text("\n".join(lines) + "\n")
    options = ("--array=1-2", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1")
    job_id = submit(*options, "array_sweep.sh", "job.toml", "sweep.txt")
    for element in (1, 2):
        assert cluster.wait_for_end(f"{job_id}_{element}")["JobState"] == "COMPLETED", _log(tmp_path)
    assert (tmp_path / "runs" / "a b $(touch pwned)" / f"{job_id}_1-0").is_dir()
    assert (tmp_path / "runs" / "c;touch pwned" / f"{job_id}_2-0").is_dir()
    assert not list(tmp_path.rglob("pwned"))


def test_the_analysis_waits_for_its_run(cluster, submit, tmp_path):
    (tmp_path / "job.toml").write_text(JOB.replace("on = false", "on = true"))
    first = submit("--ntasks-per-node=2", "--gpus-per-node=0", "train_1node.sh", "job.toml", "--set", "slurm.nodes=1")
    second = submit(f"--dependency=afterok:{first}", "analyze.sh", "runs/small/latest")
    assert cluster.wait_for_end(second)["JobState"] == "COMPLETED", _log(tmp_path)
    assert "critical path" in (tmp_path / f"analyze-{second}.out").read_text()


def _log(folder):
    return "\n".join(path.read_text(errors="replace") for path in folder.glob("*.out"))
