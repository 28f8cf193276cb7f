"""`hpcpipe` with models and data of one's own: the examples run, a check imports nothing, a mistake is one line."""

import json
import shutil
import subprocess
import sys

import pytest
from command import ROOT, hpcpipe

JOBS = ROOT / "jobs"
MODELS = ROOT / "tests" / "unit" / "own_models.py"
JOB = """\
[job]
steps = 2
[model]
kind = "own_models:{name}"
[data]
kind = "own_models:data"
[parallel]
pipeline = 2
"""


def _job(folder, name):
    shutil.copy(MODELS, folder)
    (folder / "job.toml").write_text(JOB.format(name=name))
    return "job.toml"


@pytest.mark.parametrize("name", ["own_model", "own_bert"])
def test_the_examples_train_and_evaluate(tmp_path, name):
    small = ("--set", "job.steps=3", "--set", "batch.microbatch_size=2", "--set", "data.eval_samples=6")
    process = hpcpipe("run", JOBS / f"{name}.toml", *small, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    run = tmp_path / "runs" / name / "latest"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [("eval_loss" in line) for line in lines] == [False, False, True]
    words = f"held-out loss {lines[-1]['eval_loss']:.4f} after step 3"
    assert words in process.stdout
    assert words in (run / "report.txt").read_text()


def test_a_mistake_in_a_model_is_told_once_and_in_one_line_before_anything_starts(tmp_path):
    job = _job(tmp_path, "in_place")
    for arguments in (("run", job), ("run", job, "--dry-run"), ("simulate", job)):
        process = hpcpipe(*arguments, cwd=tmp_path)
        assert process.returncode == 2, process.stderr
        told = [line for line in process.stderr.splitlines() if "changes its input in place" in line]
        assert len(told) == 1
        assert "Traceback" not in process.stderr
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_token_file_that_cannot_be_used_is_told_before_anything_starts(tmp_path):
    (tmp_path / "ids.bin").write_bytes(bytes(4001))
    job = (JOBS / "quickstart.toml").read_text().replace('kind = "text"', 'kind = "tokens"')
    (tmp_path / "job.toml").write_text(job.replace("package:pydoc_data/topics.py", "ids.bin"))
    process = hpcpipe("run", "job.toml", "--set", "parallel.pipeline=2", cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "ids.bin: 4001 bytes are no whole number of uint16 ids; set [data] dtype to its type" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_check_of_the_job_file_imports_neither_the_module_nor_torch(tmp_path):
    job = _job(tmp_path, "lazily")
    (tmp_path / "own_models.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "look.py").write_text(
        "import sys\nfrom hpcpipe.cli import main\n"
        f"try:\n    main(['validate', '{job}'])\n"
        "finally:\n    print(sorted({'torch', 'own_models'} & set(sys.modules)))\n"
    )
    process = subprocess.run(
        [sys.executable, "look.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 0, process.stderr
    assert "looked at when the run starts" in process.stdout
    assert process.stdout.splitlines()[-1] == "[]"


def test_a_dry_run_shows_the_layers_of_an_own_model(tmp_path):
    process = hpcpipe("run", _job(tmp_path, "whole"), "--dry-run", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "enter" in process.stdout
    assert "leave" in process.stdout
