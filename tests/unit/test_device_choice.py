"""Which GPU a rank takes, and what is said where there are too few."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcpipe
from hpcpipe.device.choice import Seat, deal

SOURCES = Path(hpcpipe.__file__).parent


def _deal(*seats, required=True, share=False):
    return deal([Seat(host, tuple(gpus)) for host, gpus in seats], required=required, share=share, torch="2.9.0+cpu")


def test_ranks_of_a_node_take_the_gpus_in_turn_wherever_ranks_are_placed():
    four = "abcd"
    assert _deal(*[("n0", four)] * 4, *[("n1", "efgh")] * 4).numbers == (0, 1, 2, 3) * 2
    assert _deal(("n0", "ab"), ("n1", "cd"), ("n0", "ab"), ("n1", "cd")).numbers == (0, 0, 1, 1)


def test_a_rank_that_was_bound_to_one_gpu_takes_that():
    assert _deal(("n0", "a"), ("n0", "b")).numbers == (0, 0)


def test_two_ranks_on_one_gpu_are_refused_with_what_to_change_unless_they_may_share():
    dealt = _deal(*[("n0", "a")] * 3)
    assert dealt.numbers is None
    assert dealt.problem == (
        "ranks 0, 1, 2 would all compute on GPU a of n0, where 3 ranks see 1 GPU: start at most 1 a node ([slurm] "
        "ranks_per_node, --ntasks-per-node), or ask for 3 GPUs a node with --gpu-bind=none; to let ranks share a GPU "
        'write share = true in [device], to do without kind = "cpu"'
    )
    assert _deal(*[("n0", "a")] * 3, share=True).numbers == (0, 0, 0)
    assert "ranks 0, 4 would" in _deal(*[("n0", "abcd")] * 6).problem


def test_ranks_that_see_the_same_gpu_under_other_numbers_are_told_apart_by_what_it_is():
    assert "GPU b of n0" in _deal(("n0", "ab"), ("n0", "ab"), ("n0", "b")).problem


def test_a_rank_without_a_gpu_is_an_error_where_gpus_are_asked_for_and_else_all_use_the_cpu():
    seats = [("n0", "a"), ("n1", ""), ("n2", "")]
    problem = _deal(*seats).problem
    assert problem.startswith('[device] kind = "cuda", but torch 2.9.0+cpu sees no GPU on rank 1 on n1 (nor on 1 other')
    assert _deal(*seats, required=False) == (None, "")


def test_nothing_of_cuda_is_outside_the_device_room_and_kernels():
    """What an AMD port has to look at is there and nowhere else."""
    allowed = {"device/gpu.py", "device/cuda.py", "cluster/probes.py", "bench/gpu_kernels.py"}
    pattern = re.compile(r"torch\.cuda|torch\._C\._cuda|^\s*(import|from) cupy|\.cuda\(")
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if any(pattern.search(line.partition("#")[0]) for line in path.read_text(encoding="utf-8").splitlines())
    }
    kernels = {name for name in found if name.startswith(("collective/", "device/"))}
    assert found - kernels - allowed == set()


@pytest.mark.parametrize("module", ["hpcpipe.cli.main", "hpcpipe.job", "hpcpipe.device"])
def test_the_command_line_and_job_files_need_no_gpu_library(module):
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'cupy'}} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
