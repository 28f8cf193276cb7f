"""The benchmark of a GPU: on one that is none it measures the same work, and without one it says so."""

import itertools
import json

import torch
from click.testing import CliRunner
from racing_gpu import RacingGpu

from hpcpipe.bench import gpu as bench
from hpcpipe.cli import main
from hpcpipe.device.cuda import Cuda
from hpcpipe.device.gpu import why_none
from hpcpipe.device.messages import Staged


def test_without_a_gpu_it_says_that_it_was_not_run_and_that_is_no_failure():
    done = CliRunner().invoke(main, ["bench", "gpu", "--json"])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["rows"] == []
    (note,) = document["notes"]
    assert note == f"no GPU here: not run ({why_none()})" and why_none()
    assert "no GPU here: not run" in CliRunner().invoke(main, ["bench", "gpu"]).stdout


def test_both_loops_add_the_same_gradients(monkeypatch):
    monkeypatch.setattr(bench, "VOCABULARY", 16)
    monkeypatch.setattr(bench, "MICROBATCHES", 3)
    monkeypatch.setattr(bench, "WARM_UP", 1)
    clock = itertools.count(0, 1000)
    device = Cuda(
        RacingGpu(0),
        now=lambda: next(clock),
        messages=lambda cuda: Staged(cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward),
    )
    sums = []
    for measure in (bench.bare_loop, lambda *a, **k: bench.through_the_runtime(*a, ahead=2, **k)):
        torch.manual_seed(0)
        model = bench.Model(device, bench.Size("tiny", 1, 8, 2, 8, 1), torch.float32)
        measured = measure(device, model, steps=2)
        sums.append(model.sums)
    assert measured.idle_us >= 0 and measured.longest_idle_us >= measured.idle_us
    assert all(map(torch.equal, *sums)) and any(bool(each.any()) for each in sums[0])
