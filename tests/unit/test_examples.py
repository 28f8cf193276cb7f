"""The job files in jobs/: each is valid as it stands, can be laid out and simulated, and says how it is run."""

import runpy
import sys
from pathlib import Path

import pytest
from picture_records import write_lines

import hpcpipe

JOBS = Path(__file__).parents[2] / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.toml"))
EXPECTED = {
    "quickstart": "gpt",
    "hugging_face": "gpt",
    "llama": "llama",
    "vlm": "vlm",
    "own_model": "own_model.resnet:model",
    "own_bert": "own_model.bert:model",
    "data_parallel": "gpt",
    "gpt_tensor": "gpt",
    "emulated": "synthetic",
    "study_16_stages": "synthetic",
    "kfkb_tuning": "synthetic",
    "gpt_128": "gpt",
}
"""What a stranger looks for, and the kind of its model; there may be more."""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """What an example needs that is not in git, made small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def of(name):
        if name == "vlm":
            write_lines(tmp_path, channels=1)
            return {"data.path": tmp_path / "records.jsonl"}
        if name == "hugging_face":
            monkeypatch.setattr(sys, "argv", ["small_gpt2.py", str(tmp_path / "small-gpt2")])
            runpy.run_path(str(JOBS / "small_gpt2.py"), run_name="__main__")
            return {"model.init": tmp_path / "small-gpt2"}
        return {}

    return of


def test_every_kind_of_example_is_there():
    assert set(EXPECTED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_valid_and_can_be_laid_out_and_simulated(name, settings):
    path, changes = JOBS / f"{name}.toml", settings(name)
    plans = hpcpipe.plans(path, changes)
    job = hpcpipe.load_job(path, [f"{key}={str(value)!r}" for key, value in changes.items()])
    assert not job.warnings
    assert job.run.name == name
    assert EXPECTED.get(name, job.model.kind) == job.model.kind
    assert len(plans) == job.parallel.pipeline
    if job.device.kind != "emulated":
        assert all(plan.num_parameters for plan in plans)
    found = hpcpipe.predict(path, {**changes, "batch.microbatches": 2 * job.parallel.pipeline}, steps=1)
    assert found.predictions[0].step_ns > 0
    assert f"jobs/{name}.toml" in path.read_text().partition("[job]")[0]


def test_the_128_gpu_example_is_for_128_ranks_and_within_a_stage_the_model_fits(settings):
    plans = hpcpipe.plans(JOBS / "gpt_128.toml")
    assert hpcpipe.load_job(JOBS / "gpt_128.toml").parallel.ranks == 128
    assert sum(plan.num_parameters for plan in plans) == pytest.approx(1.5e9, rel=0.1)
