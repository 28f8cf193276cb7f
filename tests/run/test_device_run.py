"""Runs on a device that was asked for: none begins without its GPU; compiled layers have the losses of plain ones."""

import json
import shutil

import pytest
from command import hpcpipe

JOB = """
[job]
name = "compiled"
steps = 4
run_dir = "runs"
[model]
kind = "gpt"
layers = 1
dim = 16
heads = 2
context = 16
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[batch]
microbatches = 2
microbatch_size = 2
[device]
kind = "cpu"
"""


def test_a_job_for_gpus_ends_before_it_begins_where_there_is_none(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    cuda = ("--set", 'device.kind="cuda"', "--set", "parallel.pipeline=2", "--set", "model.layers=2")
    done = hpcpipe("run", "job.toml", *cuda, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count('[device] kind = "cuda", but torch') == 1, "rank 0 alone tells it"
    assert "sees no GPU on rank 0" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/compiled/*/metrics.jsonl"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("hint", ["1f1b", "bfw"])
def test_compiled_layers_train_with_the_losses_of_plain_ones(tmp_path, hint):
    (tmp_path / "job.toml").write_text(JOB)
    losses = {}
    for compiled in ("false", "true"):
        sets = ["--set", f'schedule.hint="{hint}"', "--set", f"device.compile={compiled}"]
        done = hpcpipe("run", "job.toml", "--quiet", *sets, cwd=tmp_path, timeout=400)
        assert done.returncode == 0, done.stderr
        said = "W folded into B" in done.stderr
        assert said == (hint == "bfw" and compiled == "true")
        lines = (tmp_path / "runs" / "compiled" / "latest" / "metrics.jsonl").read_text().splitlines()
        losses[compiled] = [json.loads(line)["loss"] for line in lines]
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-5)
