"""Is an MPI CUDA-aware? Stand-in libraries answer as each family does; what was tried counts, not what is said."""

import ctypes
import shutil
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from job_text import VALID, write_job

from hpcpipe.cluster import gpu_aware
from hpcpipe.cluster.environment import World
from hpcpipe.device.gpu_aware import GpuAware, agree, decide
from hpcpipe.job import comm_checks, load_job

FAMILIES = {
    "open mpi with cuda": ("int MPIX_Query_cuda_support(void) { return 1; }", "yes"),
    "open mpi without": (
        "int MPIX_Query_cuda_support(void) { return 0; } int MPIX_Query_rocm_support(void) { return 0; }",
        "no",
    ),
    "open mpi with rocm": (
        "int MPIX_Query_cuda_support(void) { return 0; } int MPIX_Query_rocm_support(void) { return 1; }",
        "yes",
    ),
    "mpich with cuda": ("int MPIX_GPU_query_support(int kind, int *is) { *is = kind == 0; return 0; }", "yes"),
    "mpich with hip": ("int MPIX_GPU_query_support(int kind, int *is) { *is = kind == 2; return 0; }", "yes"),
    "mpich with level zero alone": (
        "int MPIX_GPU_query_support(int kind, int *is) { *is = kind == 1; return 0; }",
        "no",
    ),
    "mpich that knows no such kind": (
        "int MPIX_GPU_query_support(int kind, int *is) { *is = 1; return 13; }",
        "unknown",
    ),
    "an older one": ("int MPI_Init(void) { return 0; }", "unknown"),
}


@pytest.fixture
def build(tmp_path: Path) -> Any:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("not run: no C compiler for stand-in libraries")

    def library(code: str, name: str = "libstand_in.so") -> ctypes.CDLL:
        source, target = tmp_path / "library.c", tmp_path / name
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source], check=True, timeout=60)
        return ctypes.CDLL(str(target))

    return library


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_asked_in_its_own_way(build: Any, family: str) -> None:
    code, expected = FAMILIES[family]
    assert gpu_aware.says({"queries": gpu_aware.queries_of(build(code))}, {}) == expected


def test_cray_mpich_takes_gpu_buffers_with_its_gtl_library_and_the_variable(build: Any) -> None:
    from hpcpipe.cluster.probes import _maps_hold

    assert not _maps_hold("libmpi_gtl_stand_in")
    build("int mpi_gtl(void) { return 0; }", "libmpi_gtl_stand_in.so")
    linked = {"queries": {}, "memory_kinds": "", "gtl": _maps_hold("libmpi_gtl_stand_in")}
    assert linked["gtl"]
    switched = {gpu_aware.CRAY_SWITCH: "1"}
    assert gpu_aware.says(linked, switched) == "yes"
    assert gpu_aware.says(linked, {gpu_aware.CRAY_SWITCH: "0"}) == "unknown"
    assert gpu_aware.says(linked | {"gtl": False}, switched) == "unknown"


@pytest.mark.parametrize(("kinds", "expected"), [("mpi,system,cuda", "yes"), ("mpi,system", "no"), ("", "unknown")])
def test_since_mpi_4_1_an_info_key_names_the_kinds_of_memory(kinds: str, expected: str) -> None:
    assert gpu_aware.says({"queries": {}, "memory_kinds": kinds, "gtl": False}, {}) == expected


@pytest.mark.parametrize("said", ["yes", "no", "unknown"])
def test_what_came_of_the_exchange_decides_and_is_told_with_what_mpi_says(said: str) -> None:
    found = decide("auto", said, {"exchanged": [64, 4194304]})
    assert found.on
    assert "64 bytes and 4,194,304 bytes went from GPU to GPU memory" in found.reason
    crashed = decide("auto", said, {"error": "it said nothing (killed by signal 11)"})
    assert not crashed.on
    assert "killed by signal 11" in crashed.reason
    assert "copied through pinned host memory" in crashed.words
    assert not decide("auto", said, {"wrong": "64 bytes arrived changed"}).on
    assert ("cannot be asked" if said == "unknown" else f"MPI says {said}") in crashed.reason


@pytest.mark.parametrize("wanted", [True, False])
def test_a_job_can_force_it(wanted: bool) -> None:
    found = decide(wanted, "yes", {"error": "crashed"})
    assert found == GpuAware(wanted, f"[comm] cuda_aware = {str(wanted).lower()}")


def test_all_nodes_do_what_every_one_of_them_can() -> None:
    good, bad = GpuAware(True, "exchanged"), GpuAware(False, "crashed")
    assert agree([good, None, good, None]) == good
    assert agree([good, None, bad]) == bad
    assert agree([None, None]) is None


@pytest.mark.parametrize(
    ("given", "asks"),
    [(World("mpich", 4, 8, 0), True), (World("mpich", 5, 8, 1), False), (World("slurm", 0, 8, None), True)],
    ids=["first of its node", "second of its node", "first of all where nobody says"],
)
def test_one_rank_of_a_node_tries_it_for_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: World, asks: bool
) -> None:
    job, asked = load_job(write_job(tmp_path)), []

    def ask(probe: str, *, timeout_s: float) -> dict[str, Any]:
        asked.append(probe)
        return {"exchanged": [64]} if probe == "device" else {"queries": {"MPIX_Query_cuda_support": 1}}

    monkeypatch.setattr(gpu_aware, "ask", ask)
    monkeypatch.setattr(gpu_aware, "_has_gpu_driver", lambda: True)
    found = gpu_aware.try_out(job, given)
    assert asked == (["device", "mpi"] if asks else [])
    assert found == (GpuAware(True, "64 bytes went from GPU to GPU memory in a trial; MPI says yes") if asks else None)


def test_where_there_is_no_gpu_nothing_is_tried_and_nothing_decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = load_job(write_job(tmp_path))
    monkeypatch.setattr(gpu_aware, "_has_gpu_driver", lambda: False)
    monkeypatch.setattr(gpu_aware, "ask", lambda *_, **__: pytest.fail("a child was started"))
    assert gpu_aware.try_out(job, World("mpich", 0, 1, 0)) is None
    monkeypatch.setattr(gpu_aware, "_has_gpu_driver", lambda: True)
    monkeypatch.setattr(gpu_aware, "ask", lambda *_, **__: {"skipped": "torch sees no GPU"})
    assert gpu_aware.try_out(job, World("mpich", 0, 1, 0)) is None


def test_where_gpus_are_hidden_no_child_looks_for_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    monkeypatch.setattr(gpu_aware.Path, "exists", lambda _self: True)
    monkeypatch.setattr(gpu_aware, "ask", lambda *_, **__: pytest.fail("a child was started"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_aware.try_out(job, World("mpich", 0, 1, 0)) is None


def test_beside_nccl_mpi_is_given_no_gpu_memory_unless_a_job_insists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(comm_checks, "find_spec", lambda name: ModuleSpec(name, None))
    text = VALID + 'data = 2\n[comm]\ndp_collectives = "nccl"\n'
    job = load_job(write_job(tmp_path, text))
    monkeypatch.setattr(gpu_aware, "_has_gpu_driver", lambda: True)
    monkeypatch.setattr(gpu_aware, "ask", lambda *_, **__: {"exchanged": [64]})
    found = gpu_aware.try_out(job, World("mpich", 0, 4, 0))
    assert found is not None and not found.on
    assert 'dp_collectives = "nccl"' in found.reason
    assert gpu_aware.nccl_without_gpus(job, found) is None
    wrong = gpu_aware.nccl_without_gpus(job, None)
    assert wrong is not None and "torch sees none here" in wrong
    insisting = load_job(write_job(tmp_path, text + "cuda_aware = true\n"))
    assert gpu_aware.try_out(insisting, World("mpich", 0, 4, 0)) == GpuAware(True, "[comm] cuda_aware = true")
    assert gpu_aware.nccl_without_gpus(load_job(write_job(tmp_path)), None) is None


def test_the_decision_and_its_reason_stand_in_what_a_run_says_of_its_environment() -> None:
    from hpcpipe.train.environment import describe_environment

    def described(found: GpuAware | None) -> dict[str, Any] | None:
        facts = {"mpi_library": "", "git_revision": "", "threads": 1, "poll": "sleep", "device": ""}
        return describe_environment(**facts, gpu_aware=found)["gpu_aware_mpi"]

    assert described(GpuAware(False, "it crashed")) == {"on": False, "reason": "it crashed"}
    assert described(None) is None
