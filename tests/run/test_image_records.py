"""`hpcpipe run` on records of images and text that cannot be used: it says where and leaves nothing behind."""

import json
import subprocess
import sys

import pytest
from command import ROOT, hpcpipe
from small_tokenizer import write_tokenizer

JOB = ROOT / "jobs" / "vlm.toml"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """The example's records, fewer of them."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    script = [sys.executable, ROOT / "jobs" / "digits.py", folder, "--records", "60"]
    subprocess.run(script, check=True, timeout=60, capture_output=True)
    return folder


def _settings(folder, *more):
    small = ("model.encoder_layers=2", "model.layers=2", "parallel.pipeline=2", "schedule.hint=zb-h1", "job.steps=12")
    path = f"data.path={folder / 'records.jsonl'}"
    return [word for setting in (path, *small, *more) for word in ("--set", setting)]


def test_the_example_learns_from_its_digits(digits, tmp_path):
    run = hpcpipe("run", JOB, *_settings(digits, "batch.microbatches=4", "events.on=false"), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs/vlm/latest/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert len({line["tokens"] for line in lines}) > 1


def test_a_run_with_a_tokenizer_goes_on_with_the_same_one_only(digits, tmp_path):
    words = write_tokenizer(tmp_path / "words.json", "1 sheet: 4 2 sheets: 407/311 and 59", size=300)
    settings = _settings(
        digits,
        f"data.tokenizer={words}",
        "model.vocab_size=302",
        "job.steps=2",
        "parallel.pipeline=1",
        "batch.microbatches=2",
        "events.on=false",
    )
    run = hpcpipe("run", JOB, *settings, "--set", "checkpoint.every=end", "--run-dir", "here", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    saved = "here/checkpoints/step_00000002"
    more = hpcpipe("run", JOB, *settings, "--set", "job.steps=3", "--resume", saved, cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    write_tokenizer(words, "1 sheet: 4 2 sheets: 407/311 and 59", size=260)
    other = hpcpipe("run", JOB, *settings, "--set", "job.steps=3", "--resume", saved, cwd=tmp_path)
    assert other.returncode == 2, other.stderr
    assert f"it has [data] tokenizer = '{words}' (xxh3 " in other.stderr
    assert "Traceback" not in other.stderr


def test_records_that_cannot_be_used_are_an_error_of_the_input(digits, tmp_path):
    (tmp_path / "records.jsonl").write_text('{"text": "fine"}\n{"image": "gone.png", "text": "a cat"}\n')
    for words in (["run"], ["run", "--dry-run"]):
        run = hpcpipe(*words, JOB, *_settings(tmp_path, "parallel.pipeline=1"), cwd=tmp_path)
        assert run.returncode == 2, run.stdout + run.stderr
        assert f"{tmp_path / 'records.jsonl'}, line 2: {tmp_path / 'gone.png'}: No such file" in run.stderr
        assert "Traceback" not in run.stderr
    refused = hpcpipe("run", JOB, *_settings(digits, "data.max_side=16"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "is larger than max_side = 16" in refused.stderr
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
