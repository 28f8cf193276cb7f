"""Inside a job: ranks that are not one world, too many or too few, and GPUs that do not suffice, are told apart."""

import sys

import pytest
from conftest import has_pmix

HPCPIPE = (sys.executable, "-m", "hpcpipe")
GPUS = "slurm.gpus_per_node=2"
KILL = "--kill-on-bad-exit=1"


@pytest.fixture
def srun(cluster, job_file, tmp_path):
    """Run the small job by an srun line of one's own, one rank of it late if wanted; return the finished srun."""

    def call(*words, sets=(), late=-1):
        wait = ("sh", "-c", f'test "$SLURM_PROCID" != {late} || sleep 0.7; exec "$@"', "sh")
        options = [word for one in sets for word in ("--set", one)]
        command = (*words, *wait, *HPCPIPE, "run", job_file, *options)
        return cluster.run("srun", *command, cwd=tmp_path, check=False, timeout=60)

    return call


def test_tasks_that_are_worlds_of_their_own_are_refused_with_the_option_to_change(srun, tmp_path):
    done = srun("-n2", "--mpi=none")
    assert done.returncode == 3
    assert done.stderr.count("slurm started 2 tasks, but each is a world of its own, rank 0 of 1") == 1
    assert "srun --mpi=pmi2" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("words", "late"), [((), 0), ((KILL,), 0), ((KILL,), 1)])
def test_an_interface_that_the_mpi_does_not_speak_is_refused_with_the_option_to_change(
    cluster, srun, tmp_path, words, late
):
    """Whoever comes first: srun ends the others with the first that leaves, and reports 143 for what it has killed."""
    if not has_pmix(cluster):
        pytest.skip("srun cannot serve PMIx here; on Debian: apt-get install libpmix-dev")
    done = srun("-N2", "-n2", "--mpi=pmix", *words, late=late)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("srun serves pmix to its ranks, but MPICH Version: 5") == 1, done.stderr
    assert "write `--mpi=pmi2` on the srun line" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("late", [0, 1])
def test_a_fault_of_the_job_is_told_before_srun_ends_the_ranks(srun, tmp_path, late):
    done = srun("-N2", "-n2", "--mpi=pmi2", KILL, sets=("job.steps='x'",), late=late)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("steps must be a whole number") == 1, done.stderr
    assert not (tmp_path / "runs").exists()


def test_more_or_fewer_tasks_than_the_mesh_are_refused_with_all_numbers(srun, tmp_path):
    for tasks in (1, 3):
        done = srun(f"-n{tasks}", "--mpi=pmi2")
        assert done.returncode == 3
        assert done.stderr.count("[parallel] asks for 2 = pipeline 2 * data 1 * tensor 1") == 1
        assert f"SLURM_STEP_NUM_TASKS = {tasks}" in done.stderr
        assert "#SBATCH --ntasks-per-node=1" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-N1", "-n2"), "was given no GPU"),
        (("-N1", "-n2", "--gpus-per-node=1"), "2 ranks on n1 share 1 GPU (0)"),
        (("-N1", "-n2", "--gpus-per-node=2", "--gpu-bind=map_gpu:1,1"), "both compute on GPU 1"),
    ],
    ids=["none", "too few", "two ranks on one"],
)
def test_gpus_that_do_not_suffice_are_told_apart_before_any_work(srun, tmp_path, words, said):
    done = srun("--mpi=pmi2", "-w", "n1", *words, sets=(GPUS, "slurm.nodes=1"))
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("--gpus-per-node=2", "--gpu-bind=none"), ("--gpus-per-task=1",)])
def test_a_gpu_for_each_rank_is_enough_however_it_was_bound(srun, words):
    done = srun("--mpi=pmi2", "-N1", "-n2", *words, sets=(GPUS, "slurm.nodes=1", "job.steps=1"))
    assert done.returncode == 0, done.stderr
