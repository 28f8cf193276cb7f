"""A tuning with real runs as a user starts it, on emulated devices."""

import json

from command import hpcpipe

JOB = """
[job]
name = "tuned"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 2
backward_ms = 4
[parallel]
pipeline = 2
[batch]
microbatches = 4
[schedule]
hint = "kfkb"
[variability]
network = { model = "lognormal", base_ms = 5, sigma = 0.0 }
"""


def test_short_runs_of_the_candidates_are_measured_and_the_best_runs_from_its_copy(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    words = ("--steps", 2, "--runs", 3, "--rounds", 1, "--write", "--json")
    process = hpcpipe("tune", "job.toml", *words, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    measured = [each for each in document["candidates"] if each["measured_ns"]]
    assert {each["measured_steps"] for each in measured} == {2}
    assert 1 < len(measured) <= 3
    assert all(each["measured_ns"] >= 4 * 6e6 for each in measured)  # the work of one stage
    assert document["best"]["measured_ns"] <= 1.01 * min(each["measured_ns"] for each in measured)
    assert "run 1: k = 1, b = 1" in process.stderr
    assert path.read_text() == JOB
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job.toml", "job.tuned.toml"]
    again = hpcpipe("run", "job.tuned.toml", "--set", "job.steps=1", "--run-dir", "run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert metrics["k"] == document["best"]["k"]
    assert again.stdout
