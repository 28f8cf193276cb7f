"""`hpcpipe run --replay` from the outside: what was recorded runs again, and a log that does not fit starts nothing."""

import json

from command import hpcpipe

from hpcpipe.events import open_run
from hpcpipe.plan import FLAG_REPLAYED, Kind

JOB = """
[job]
name = "replayed"
steps = 3
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
[parallel]
pipeline = 3
[batch]
microbatches = 8
[schedule]
hint = "bf"
in_flight = "2x"
[variability]
compute = { model = "lognormal", sigma = 0.8 }
network = { model = "lognormal", base_ms = 1.0, sigma = 1.5 }
"""


def _order(log):
    events = log.events
    rows = list(zip(events.t_start, events.kind, events.step, events.microbatch, events.flags, strict=True))
    rows = [tuple(map(int, row)) for row in sorted(rows) if row[1] in (Kind.F, Kind.B)]
    return [row[1:4] for row in rows], {row[4] & FLAG_REPLAYED for row in rows}


def test_a_run_is_replayed_and_says_so_in_its_log_and_metrics(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    first = hpcpipe("run", "job.toml", "--quiet", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    latest = tmp_path / "runs" / "replayed" / "latest"
    before = latest.resolve()
    again = ("run", "job.toml", "--replay", "runs/replayed/latest", "--set", "variability.seed=9")
    process = hpcpipe(*again, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert f"replays the order of {before}" in process.stdout
    recorded, replayed = open_run(before), open_run(latest)
    assert latest.resolve() != before
    for old, new in zip(recorded.ranks, replayed.ranks, strict=True):
        assert _order(new) == (_order(old)[0], {FLAG_REPLAYED})
        assert [bytes(what) for what in new.decisions.what] == [b"order"]
    lines = (latest / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(line)["dispatch"] for line in lines} == {"replay"}
    refused = hpcpipe(*again, "--run-dir", "third", "--set", "job.steps=4", cwd=tmp_path)
    assert refused.returncode == 2
    assert "3 whole steps, but this job runs 4" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "third").exists()
