"""A run that looks for its bucket size as a user starts it: stopped, resumed, analysed, and refused for a replay."""

import json

import pytest
from command import QUICKSTART, hpcpipe, small

from hpcpipe.analyze import summarize
from hpcpipe.events import open_run

pytest.importorskip("sklearn")

JOB = (
    "parallel.pipeline=1",
    "parallel.data=2",
    "batch.microbatches=2",
    "model.dim=16",
    'optimizer.schedule="constant"',  # a rate that does not depend on how many steps there are
    "comm.bucket_mb=0.02",  # a fifth of the model, so that the first three sizes differ
)
AUTO = (*JOB[:-1], "checkpoint.every=3")
ON = (*JOB, 'tune.fusion="on"', "checkpoint.every=24")


def _run(folder, steps, *more, name="run", job=ON):
    process = hpcpipe("run", QUICKSTART, *small(f"job.steps={steps}", *job), "--run-dir", name, *more, cwd=folder)
    assert process.returncode == 0, process.stderr
    return process.stdout


def _losses(folder, name):
    return [json.loads(line)["loss"] for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def _decisions(folder):
    return [row for row in summarize(open_run(folder / "run")).decisions if row.what == "fusion"]


def test_a_search_is_shown_by_the_analysis_and_goes_on_when_the_run_is_resumed(tmp_path):
    said = _run(tmp_path, 24)  # 3 to warm up, one that is not counted, 5 of a trial, 2 until all have switched, ...
    assert "fusion: the run has ended before the search for a bucket size: 2 trials" in said
    decisions = _decisions(tmp_path)
    assert [row.step for row in decisions] == [0, 11, 19, 23]
    assert "the search begins" in decisions[0].why
    assert all(f" MB: trial {number}: " in row.why for number, row in enumerate(decisions[1:3], 1))
    assert decisions[3].why.startswith("not settled: ")
    text = hpcpipe("analyze", "run", cwd=tmp_path).stdout
    assert "decided on the way" in text
    assert text.count(" fusion ") == len(decisions)
    _run(tmp_path, 48, "--resume", "auto")
    resumed = _decisions(tmp_path)
    assert resumed[0].step == 24
    assert "the search goes on after the 2 trials of the checkpoint" in resumed[0].why
    assert " MB: trial 3: " in resumed[1].why
    _run(tmp_path, 48, name="plain", job=(*JOB, "events.on=false"))
    assert _losses(tmp_path, "run") == _losses(tmp_path, "plain")
    refused = hpcpipe("run", QUICKSTART, *small("job.steps=24", *ON), "--replay", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert 'was recorded with [tune] fusion = "on"' in refused.stderr


def test_the_size_that_the_stage_decides_is_shown_logged_and_taken_by_a_run_that_had_another(tmp_path):
    """Layers of 13 kB of gradients and two replicas: the least size is that of all in one bucket."""
    _run(tmp_path, 3, job=(*AUTO, "comm.bucket_mb=0.02"))
    assert _decisions(tmp_path) == []
    said = _run(tmp_path, 6, "--resume", "auto", job=AUTO)
    assert "fusion: buckets of 0.25 MB ([comm] bucket_mb = " in said
    (taken,) = _decisions(tmp_path)
    assert taken.step == 3
    assert taken.why.startswith("take 0.25 MB ")
    assert "take 0.25 MB ([comm] bucket_mb" in " ".join(hpcpipe("analyze", "run", cwd=tmp_path).stdout.split())
    _run(tmp_path, 6, name="plain", job=(*AUTO, "events.on=false"))
    assert _losses(tmp_path, "run") == _losses(tmp_path, "plain")
