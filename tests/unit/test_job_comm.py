"""What `[comm]` says of GPUs: it has an effect, and what it needs is there, or the job is refused."""

import importlib.machinery
from pathlib import Path

import pytest
from job_text import VALID, faults_of, write_job

from hpcpipe.job import comm_checks, load_job


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package be found, as where it is installed."""
    monkeypatch.setattr(comm_checks, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))


def test_by_default_gpu_buffers_are_tried_out_and_mpi_sums(tmp_path: Path) -> None:
    comm = load_job(write_job(tmp_path)).comm
    assert (comm.cuda_aware, comm.dp_collectives, comm.tp_collectives) == ("auto", "mpi", "mpi")


@pytest.mark.parametrize("value", ["true", "false"])
def test_whether_mpi_takes_gpu_buffers_can_be_forced_but_not_on_a_cpu(tmp_path: Path, value: str) -> None:
    text = VALID + f"[comm]\ncuda_aware = {value}\n"
    assert load_job(write_job(tmp_path, text)).comm.cuda_aware is (value == "true")
    (fault,) = faults_of(write_job(tmp_path, text + '[device]\nkind = "cpu"\n'))
    assert f'cuda_aware = {value} has no effect with [device] kind = "cpu"' in fault.message


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        ('"maybe"', 'must be "auto", true or false, got the text "maybe"', "tries it out"),
        ('"on"', 'must be true or false without quotes, got the text "on"', "write true"),
        ("1", 'must be "auto", true or false, got 1', "tries it out"),
    ],
)
def test_another_value_is_refused_with_what_there_is(tmp_path: Path, value: str, message: str, hint: str) -> None:
    (fault,) = faults_of(write_job(tmp_path, VALID + f"[comm]\ncuda_aware = {value}\n"))
    assert message in fault.message
    assert hint in fault.hint


@pytest.mark.parametrize(("key", "parallel"), [("dp_collectives", "data"), ("tp_collectives", "tensor")])
def test_nccl_needs_ranks_to_sum_over_gpus_one_for_each_and_cupy(
    tmp_path: Path, cupy: None, monkeypatch: pytest.MonkeyPatch, key: str, parallel: str
) -> None:
    def faults(text: str, ranks: int = 2) -> str:
        body = VALID + f'{parallel} = {ranks}\n[comm]\n{key} = "nccl"\n{text}'
        return "; ".join(fault.message for fault in faults_of(write_job(tmp_path, body)))

    assert faults("") == ""
    assert f"no effect with {parallel} = 1" in faults("", ranks=1)
    assert 'needs GPUs, but [device] kind = "cpu"' in faults('[device]\nkind = "cpu"\n')
    monkeypatch.setattr(comm_checks, "find_spec", lambda _name: None)
    assert "needs the package cupy" in faults("")


def test_checked_collectives_go_over_mpi(tmp_path: Path, cupy: None) -> None:
    text = VALID + 'tensor = 2\n[comm]\ntp_collectives = "nccl"\ncheck_collectives = true\n'
    (fault,) = faults_of(write_job(tmp_path, text))
    assert fault.message.startswith("check_collectives = true compares tasks by collectives of MPI")
