"""The doctor: its answers on this machine, and what it says where things are wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from no_locks import failing_flock

from hpcpipe.cli import main
from hpcpipe.cluster import ask, doctor, mpiexec
from hpcpipe.cluster.check import Check
from hpcpipe.cluster.doctor_ranks import check_ranks, strip
from hpcpipe.cluster.environment import child_environment

MPI: dict[str, Any] = {
    "library": "MPICH Version: 5.0",
    "vendor": "MPICH",
    "standard": "5.0",
    "thread_level": "MULTIPLE",
    "mpi4py": "4.1",
    "path": "/lib/libmpi.so.12",
    "queries": {"MPIX_Query_cuda_support": 0},
    "memory_kinds": "mpi,system",
    "gtl": False,
}
LIBRARIES: dict[str, Any] = {
    "numpy": {"version": "2"},
    "h5py": {"version": "3", "hdf5": "2.0"},
    "torch": {"version": "2", "threads": 1, "gpus": 0},
}
NATIVE = {"mpi_library_path": "/lib/libmpi.so.12", "compiler": "gcc 12"}
FILES: dict[str, Any] = {"follow": [0, 1, 2]}


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the checks by name, with the probes' answers replaced."""

    def judged(*, joined: ask.Answer | None = None, **answers: ask.Answer) -> dict[str, Check]:
        given: dict[str, ask.Answer] = {
            "libraries": LIBRARIES,
            "mpi": MPI,
            "native": NATIVE,
            "files": FILES,
            "device": {},
        } | answers
        monkeypatch.setattr(doctor, "ask", lambda probe, *_, timeout_s: given[probe])  # noqa: ARG005
        monkeypatch.setattr(doctor, "ask_ranks", lambda *_, timeout_s: [{"size": 2, "sum": 2}] * 2)  # noqa: ARG005
        return {check.name: check for check in doctor.run_checks(tmp_path / "runs", joined=joined)}

    monkeypatch.setattr(doctor, "find_mpiexec", lambda: mpiexec.Mpiexec(Path("/bin/mpiexec"), "mpich", "Hydra 5.0"))
    return judged


@pytest.mark.timeout(150)
def test_on_this_machine_every_check_passes_or_says_what_to_do_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpcpipe", "doctor", "--json", "--run-dir", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=140, check=False, env=child_environment())
    document = json.loads(done.stdout)
    assert document["format"] == "hpcpipe-doctor"
    assert all(set(check) == {"name", "status", "detail", "hint"} for check in document["checks"])
    assert all(check["hint"] for check in document["checks"] if check["status"] != "pass")
    wrong = [check for check in document["checks"] if check["status"] == "fail"]
    assert (done.returncode, document["ok"], wrong) == (0, True, [])
    assert list(tmp_path.iterdir()) == []


def test_where_all_is_well_every_check_passes(checks: Any) -> None:
    assert {check.status for check in checks().values()} <= {"pass", "skip", "warn"}


def test_every_library_that_cannot_be_imported_is_named(checks: Any) -> None:
    found = checks(libraries=LIBRARIES | {"torch": {"error": "ImportError: libfoo.so is missing"}})
    assert found["torch"].status == "fail"
    assert "libfoo" in found["torch"].detail
    silent = checks(libraries={"error": "no answer within 90 s"})
    assert [silent[name].status for name in ("numpy", "h5py", "torch")] == ["fail"] * 3


def test_an_mpi_that_does_not_start_fails_and_what_depends_on_it_is_left_out(checks: Any) -> None:
    found = checks(mpi={"error": "RuntimeError: cannot load MPI library"})
    assert found["mpi"].status == "fail"
    assert "mpi4py" in found["mpi"].hint
    assert found["mpi threads"].status == found["gpu-aware mpi"].status == "skip"


def test_an_mpiexec_of_another_family_fails_before_it_is_tried(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_mpiexec", lambda: mpiexec.Mpiexec(Path("/bin/mpiexec"), "openmpi", "4.1"))
    assert "belongs to another MPI" in checks()["mpiexec"].detail
    monkeypatch.setattr(doctor, "find_mpiexec", lambda: None)
    assert checks()["mpiexec"].status == "fail"


def test_a_native_module_for_another_mpi_fails_with_the_way_to_rebuild_it(checks: Any) -> None:
    found = checks(native={"error": "ImportError: built against Open MPI"})
    assert found["native module"].status == "fail"
    assert "rebuild" in found["native module"].hint


CUDA = {
    "memory_kinds": MPI | {"memory_kinds": "mpi,system,cuda"},
    "query": MPI | {"queries": {"MPIX_Query_cuda_support": 1}},
}


@pytest.mark.parametrize("mpi", CUDA.values(), ids=CUDA)
@pytest.mark.parametrize(
    ("device", "status", "status_if_promised", "said"),
    [
        ({"exchanged": [64, 4194304]}, "pass", "pass", "64 bytes and 4,194,304 bytes went from GPU to GPU"),
        ({"error": "it said nothing (killed by signal 11)"}, "warn", "fail", "killed by signal 11"),
        ({"wrong": "64 bytes arrived changed"}, "fail", "fail", "64 bytes arrived changed"),
    ],
    ids=["exchanged", "crashed", "wrong"],
)
def test_what_counts_for_gpu_buffers_is_the_exchange_and_not_what_mpi_says(
    checks: Any, mpi: ask.Answer, device: ask.Answer, status: str, status_if_promised: str, said: str
) -> None:
    gpus = {"libraries": LIBRARIES | {"torch": {"version": "2", "threads": 1, "gpus": 4}}, "device": device}
    unsaid, promised = checks(**gpus)["gpu-aware mpi"], checks(**gpus, mpi=mpi)["gpu-aware mpi"]
    assert (unsaid.status, promised.status) == (status, status_if_promised)
    assert all(said in found.detail for found in (unsaid, promised))
    assert "says of GPU buffers: no" in unsaid.detail
    assert "says of GPU buffers: yes" in promised.detail
    assert all(found.hint for found in (unsaid, promised) if found.status != "pass")


TORCH = """
import numpy as np
int32 = np.int32
class Tensor:
    made = 0
    def __init__(self, array):
        Tensor.made += 1
        self.array, self.number = array, Tensor.made
    def data_ptr(self):
        return self.array.ctypes.data{address}
class cuda:
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda: None)
arange = lambda number, dtype, device: Tensor(np.arange(number, dtype=dtype))
zeros_like = lambda tensor: Tensor(np.zeros_like(tensor.array))
equal = lambda a, b: bool((a.array == b.array).all()){equal}
"""


@pytest.mark.parametrize(
    ("address", "equal", "answer"),
    [
        ("", "", {"exchanged": [64, 4194304]}),
        (" * 0 + 2**26 * self.number", "", {"error": "killed by signal 11"}),
        ("", " and a.array.nbytes < 1000", {"wrong": "4194304 bytes arrived changed"}),
    ],
    ids=["memory that MPI can read", "memory that MPI cannot read", "other bytes than were sent"],
)
def test_the_exchange_of_gpu_buffers_may_crash_its_process_and_is_an_answer_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str, equal: str, answer: ask.Answer
) -> None:
    """Stand-in for torch: its device memory is the host's, or an address at which there is nothing, as a GPU's is."""
    (tmp_path / "torch.py").write_text(TORCH.replace("{address}", address).replace("{equal}", equal))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    found = ask.ask("device", timeout_s=60)
    assert found.keys() == answer.keys()
    assert all(str(value) in str(found[key]) for key, value in answer.items())


def test_tasks_that_are_worlds_of_their_own_fail_with_the_interface_to_try(
    checks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    found = checks(joined={"rank": 0, "size": 1})["launcher"]
    assert found.status == "fail"
    assert found.detail == "slurm started 4 tasks, but MPI sees a world of 1"
    assert "srun --mpi=pmi2" in found.hint
    assert checks(joined={"rank": 0, "size": 4})["launcher"].status == "pass"
    assert checks(joined={"error": "PMI aborted"})["launcher"].status == "fail"


def test_cores_that_srun_did_not_pass_on_are_a_warning(checks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "100000")
    assert "--cpus-per-task" in checks(joined={"rank": 0, "size": 1})["cores"].hint


def test_a_log_that_cannot_be_followed_is_a_warning_with_the_variable_to_set(checks: Any) -> None:
    found = checks(files={"follow": "OSError: unable to lock file, errno = 524"})["event log"]
    assert found.status == "warn"
    assert "HDF5_USE_FILE_LOCKING=FALSE" in found.hint


def test_a_file_system_without_locks_is_explained_and_no_failure(checks: Any) -> None:
    found = checks(files={"follow": [0, 1, 2], "no_locks": "unable to lock file, errno = 524"})["event log"]
    assert found.status == "warn"
    assert "errno = 524" in found.detail
    assert "written without locks" in found.detail
    assert "HDF5_USE_FILE_LOCKING=FALSE" in found.hint


def test_the_probe_of_files_meets_locks_that_do_not_work(tmp_path: Path) -> None:
    """A real flock that fails as Lustre's without -o flock does (openPMD-api 1106)."""
    library = failing_flock(tmp_path)
    environment = {**child_environment(), "LD_PRELOAD": str(library), "FLOCK_ERRNO": "524"}
    environment.pop("HDF5_USE_FILE_LOCKING", None)
    command = [sys.executable, "-m", "hpcpipe.cluster.probes", "files", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    answer = json.loads(done.stdout)
    assert "errno = 524" in answer["no_locks"]
    assert answer["follow"] == [0, 1, 2]


def test_a_failed_check_ends_the_command_with_3_and_stays_readable(
    checks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = list(checks(native={"error": "ImportError: built against Open MPI"}).values())
    monkeypatch.setattr(doctor, "run_checks", lambda *_, **__: wrong)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 3
    assert "FAIL  native module" in result.stdout
    assert "1 failed" in result.stdout
    as_json = CliRunner().invoke(main, ["doctor", "--json"])
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout)["ok"] is False


@pytest.mark.timeout(30)
def test_a_child_that_hangs_or_crashes_is_an_answer_and_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    hang = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(ask, "_command", lambda *_: [sys.executable, "-c", hang])
    assert ask.ask("mpi", timeout_s=3) == {"error": "no answer within 3 s"}
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
    monkeypatch.setattr(ask, "_command", lambda *_: [sys.executable, "-c", "import os; os.abort()"])
    assert ask.ask("mpi", timeout_s=10) == {"error": "it said nothing (killed by signal 6)"}


FACTS: dict[str, Any] = {
    "local_rank": 0,
    "library": "MPICH Version: 5.0",
    "handle_bytes": 4,
    "gpus": None,
    "whole": None,
    "on_node": 0,
    "transports": ["UCX"],
    "network_settings": {},
    "files": {"synced_ms": 2.0, "locks": ""},
    "cores": [0, 1],
    "threads": 1,
    "memlock": -1,
    "stack": -1,
    "clock_offset_s": 0.0,
    "sees_folder": True,
}


def together(*changes: dict[str, Any], slow: tuple[int, ...] = ()) -> dict[str, Check]:
    """Return the checks of eight nodes with a rank each, the first of which differ as given."""
    ranks = [
        FACTS | {"rank": rank, "node": f"n{rank}"} | (changes[rank] if rank < len(changes) else {}) for rank in range(8)
    ]
    links = [
        {"from": r, "to": r + 1, "latency_us": 40.0 if r in slow else 2.0, "mb_per_s": 100.0 if r in slow else 10_000.0}
        for r in range(7)
    ]
    return {check.name: check for check in check_ranks(ranks, links)}


def test_ranks_that_are_alike_pass_every_check() -> None:
    assert {check.status for check in together().values()} <= {"pass", "skip"}


@pytest.mark.parametrize(
    ("change", "name", "status", "said"),
    [
        ({"library": "Open MPI v5"}, "mpi on all nodes", "fail", "Open MPI v5 on n0"),
        ({"handle_bytes": 8}, "mpi on all nodes", "fail", "on n0"),
        ({"sees_folder": False}, "shared folder", "fail", "not seen on n0"),
        ({"clock_offset_s": -3.5}, "clocks", "warn", "3.5e+03 ms"),
        ({"threads": 16}, "cores of the ranks", "warn", "16 OMP threads share 2 cores on n0"),
        ({"stack": 65536}, "limits", "warn", "64 KiB"),
        ({"memlock": 65536, "transports": ["PSM2"]}, "limits", "warn", "locked memory on n0"),
        ({"files": {"error": "Read-only file system"}}, "files of all nodes", "fail", "from n0: Read-only file system"),
        ({"files": {"synced_ms": 1.0, "locks": "No locks available"}}, "files of all nodes", "warn", "locked from n0"),
        ({"files": {"synced_ms": 900.0, "locks": ""}}, "files of all nodes", "warn", "900 ms at most, on n0"),
        ({"gpus": ["0"], "on_node": 1}, "gpus of the ranks", "fail", "rank 1 on n1 was given no GPU"),
    ],
)
def test_what_differs_on_one_node_is_named_with_the_node(
    change: dict[str, Any], name: str, status: str, said: str
) -> None:
    found = together(change)
    assert found[name].status == status
    assert said in found[name].detail
    assert found[name].hint
    assert all(check.status in ("pass", "skip") for other, check in found.items() if other != name)


def test_the_node_that_all_slow_links_share_is_the_suspect() -> None:
    found = together(slow=(2, 3))["links"]
    assert found.status == "warn"
    assert "rank 2 on n2 to rank 3 on n3: 40 µs, 100 MB/s" in found.detail
    assert "--exclude=n3" in found.hint
    assert "--exclude" not in together(slow=(2,))["links"].hint


def test_few_links_are_all_listed_and_latencies_like_tcp_between_nodes_are_a_warning() -> None:
    found = together()
    assert len([line for line in found["links"].detail.splitlines() if line.startswith("rank ")]) == 7
    ranks = [FACTS | {"rank": rank, "node": f"n{rank // 2}"} for rank in range(4)]
    inside, between = {"latency_us": 0.5, "mb_per_s": 9e3}, {"latency_us": 25.0, "mb_per_s": 900.0}
    links = [{"from": r, "to": r + 1, **(between if r == 1 else inside)} for r in range(3)]
    tcp = next(check for check in check_ranks(ranks, links) if check.name == "transports")
    assert tcp.status == "warn"
    assert "25 µs between nodes" in tcp.detail
    assert "FI_PROVIDER" in tcp.hint


def test_the_strip_of_links_has_a_bar_for_each_and_a_high_one_for_the_slow() -> None:
    links = [{"from": r, "to": r + 1, "latency_us": 2.0, "mb_per_s": 1e4} for r in range(100)]
    links[70]["latency_us"] = 100.0
    first, second = strip(links).splitlines()
    assert first == "     0 " + "▁" * 64
    assert second == "    64 " + "▁" * 6 + "█" + "▁" * 29


def test_one_gpu_visible_to_each_rank_is_told_to_break_ipc() -> None:
    both = [
        {"gpus": ["0"], "whole": ["0"], "node": "n0"},
        {"gpus": ["1"], "whole": ["1"], "node": "n0", "local_rank": 1},
    ]
    ranks = [FACTS | {"rank": rank} | change for rank, change in enumerate(both)]
    (found,) = [check for check in check_ranks(ranks, []) if check.name == "gpus of the ranks"]
    assert found.status == "warn"
    assert "--gpu-bind=none" in found.hint
