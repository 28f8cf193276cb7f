"""The simulator against reality: the recorded times of real runs, put under the run's own schedule, give its steps."""

import json

import pytest
from command import QUICKSTART, hpcpipe

WITHIN = 0.03


@pytest.mark.parametrize(
    "settings",
    [
        ("schedule.hint=critical", "schedule.dispatch=ready"),
        ("schedule.hint=1f1b", "schedule.dispatch=fixed", "parallel.pipeline=2", "model.layers=4"),
    ],
)
def test_a_simulation_of_a_recorded_run_takes_as_long_as_the_run(tmp_path, settings):
    options = [word for setting in ("job.steps=12", *settings) for word in ("--set", setting)]
    assert hpcpipe("run", QUICKSTART, *options, "--run-dir", "run", "--quiet", cwd=tmp_path).returncode == 0
    command = ("simulate", QUICKSTART, *options, "--from", "run", "--compare", "gpipe:fixed", "--json", "--steps", 10)
    process = hpcpipe(*command, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert document["own_error"] < WITHIN
    assert [each["hint"] for each in document["results"]] == [json.loads(process.stdout)["results"][0]["hint"], "gpipe"]
    for each in document["results"]:
        assert sum(each["classes"].values()) > 0
        assert each["classes"]["forward"] > 0


EMULATED = """
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10
weight_ms = 5
[parallel]
pipeline = 4
[batch]
microbatches = 8
[variability]
compute = { model = "lognormal", sigma = 0.5 }
network = { model = "lognormal", base_ms = 1.0, sigma = 1.0 }
"""


@pytest.mark.parametrize("hint", ["critical", pytest.param("bfw", marks=pytest.mark.long)])
def test_a_simulation_of_an_emulated_run_takes_as_long_as_the_run(tmp_path, hint):
    (tmp_path / "emulated.toml").write_text(EMULATED)
    options = ("--set", "job.steps=9", "--set", f"schedule.hint={hint}")
    assert hpcpipe("run", "emulated.toml", *options, "--run-dir", "run", "--quiet", cwd=tmp_path).returncode == 0
    process = hpcpipe("simulate", "emulated.toml", *options, "--from", "run", "--json", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["own_error"] < WITHIN
