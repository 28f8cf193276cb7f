"""The examples that no other test runs, small: they train as a user starts them."""

import json
import subprocess
import sys

import pytest
from command import ROOT, hpcpipe

JOBS = ROOT / "jobs"
SHORT = ("job.steps=3", "events.on=false", "batch.microbatches=2", "batch.microbatch_size=1", "data.seq_len=32")
EXAMPLES = {
    "data_parallel": ("parallel.data=2", "model.layers=4", "model.context=32", *SHORT),
    "hugging_face": ("checkpoint.every=3", *SHORT),
}


@pytest.fixture
def small_gpt2(tmp_path):
    folder = tmp_path / "small-gpt2"
    subprocess.run([sys.executable, JOBS / "small_gpt2.py", folder], check=True, timeout=60, capture_output=True)
    return folder


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains(name, tmp_path, request):
    settings = list(EXAMPLES[name])
    if name == "hugging_face":
        settings.append(f"model.init={request.getfixturevalue('small_gpt2')}")
    words = [word for setting in settings for word in ("--set", setting)]
    run = hpcpipe("run", JOBS / f"{name}.toml", *words, "--run-dir", "run", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    if name == "hugging_face":
        assert hpcpipe("checkpoint", "verify", "run", cwd=tmp_path).returncode == 0
