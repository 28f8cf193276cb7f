"""A whole run on emulated devices as a user starts it: many ranks on few cores, and labelled for what it is."""

import json

from command import hpcpipe

JOB = """
[job]
name = "many"
steps = 2
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 4
backward_ms = 8
weight_ms = 4
[parallel]
pipeline = 16
[batch]
microbatches = 8
[schedule]
hint = "zbv"
[variability]
network = { model = "lognormal", base_ms = 0.5, sigma = 1.0 }
"""


def test_sixteen_ranks_run_and_say_that_their_times_are_emulated(tmp_path):
    (tmp_path / "many.toml").write_text(JOB)
    process = hpcpipe("run", "many.toml", "--run-dir", "run", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "emulated model (times are drawn, nothing is computed) on 16 ranks" in process.stdout
    assert "2 emulated steps" in process.stdout
    assert "loss" not in process.stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["loss"], line["tokens"]) for line in lines] == [(None, 0)] * 2
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert (environment["device"], environment["poll"]) == ("emulated", "sleep")
    report = json.loads(hpcpipe("analyze", "run", "--json", cwd=tmp_path).stdout)
    assert report["world_size"] == 16
    assert all(sum(rank["classes"].values()) == rank["wall_ns"] for rank in report["ranks"])
    assert all(rank["classes"][kind] > 0 for rank in report["ranks"] for kind in ("forward", "backward", "weight"))
