"""Tensor slices whose messages come at different times: whole runs in which nobody hangs and no collectives mix."""

import json

import numpy as np
import pytest
from command import ROOT, hpcpipe, small

from hpcpipe.events import open_run
from hpcpipe.plan import Kind

JOB = """
[job]
name = "slices"
log_every = 1000
hang_timeout = 60
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 0.3
backward_ms = 0.6
weight_ms = 0.3
[parallel]
pipeline = 2
[batch]
microbatches = 6
[schedule]
in_flight = "2x"
[events]
flush_every = 50
[variability]
compute = { model = "lognormal", sigma = 0.5 }
network = { model = "lognormal", base_ms = 0.5, sigma = 1.0 }
"""


def _run(folder, *overrides, timeout=110):
    (folder / "slices.toml").write_text(JOB)
    options = [word for override in overrides for word in ("--set", override)]
    process = hpcpipe("run", "slices.toml", "--run-dir", "run", *options, cwd=folder, timeout=timeout)
    assert process.returncode == 0, process.stderr
    return open_run(folder / "run")


def _check(run, *, steps, tensor, kinds):
    """Check that the slices of each stage ran one order, and that every task was agreed on."""
    ran, agreed = {}, {}
    for rank in run.ranks:
        events = rank.events
        by_start = np.lexsort((events.t_start, events.step))
        rows = zip(
            *(column[by_start].tolist() for column in (events.step, events.kind, events.microbatch)), strict=True
        )
        rows = list(rows)
        ran[rank.rank] = [row for row in rows if row[1] in (Kind.F, Kind.B, Kind.W)]
        agreed[rank.rank] = [row[2] for row in rows if row[1] == Kind.AGREE]
        assert rank.header.mesh == (2, 1, tensor)
        assert rank.header.coords == (rank.rank // tensor, 0, rank.rank % tensor)
    for rank, order in ran.items():
        assert len(order) == steps * 6 * kinds
        assert order == ran[rank - rank % tensor], f"rank {rank} ran another order than its stage's first slice"
        assert len(agreed[rank]) == len(agreed[rank - rank % tensor])
        assert sum(microbatch >= 0 for microbatch in agreed[rank]) == len(order)
    assert any(-1 in each for each in agreed.values()), "these delays never made slices differ"


def _check_report(folder):
    report = json.loads(hpcpipe("analyze", "run", "--json", cwd=folder).stdout)
    assert all(sum(rank["classes"].values()) == rank["wall_ns"] for rank in report["ranks"])
    assert all(rank["classes"]["agreement"] > 0 for rank in report["ranks"])
    assert all(rank["classes"]["order"] == 0 for rank in report["ranks"])


@pytest.mark.parametrize(("tensor", "hint"), [(2, "bfw"), (4, "bf")])
def test_a_hundred_steps_with_random_delays_on_every_slice(tmp_path, tensor, hint):
    run = _run(tmp_path, f"parallel.tensor={tensor}", f'schedule.hint="{hint}"', "job.steps=100")
    _check(run, steps=100, tensor=tensor, kinds=3 if hint == "bfw" else 2)
    _check_report(tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize(("hint", "agreement"), [("bfw", "common"), ("zbv", "common"), ("bf", "propose")])
def test_two_thousand_steps_with_random_delays_on_every_slice(tmp_path, tensor, hint, agreement):
    settings = (f"parallel.tensor={tensor}", f'schedule.hint="{hint}"', f'schedule.agreement="{agreement}"')
    run = _run(tmp_path, *settings, "job.steps=2000", timeout=800)
    if hint != "zbv":
        _check(run, steps=2000, tensor=tensor, kinds=3 if hint == "bfw" else 2)
    _check_report(tmp_path)


def test_the_example_trains_on_four_ranks_of_a_laptop(tmp_path):
    sets = small("job.steps=5", "events.on=false")
    process = hpcpipe("run", ROOT / "jobs" / "gpt_tensor.toml", *sets, "--run-dir", "run", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
