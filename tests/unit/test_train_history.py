"""Metrics of a training that was stopped: every step once, none twice, no half line."""

import json

from hpcpipe.train.history import add_start, carry_metrics


def lines(*steps):
    return "".join(json.dumps({"step": step, "loss": step / 8}) + "\n" for step in steps)


def test_the_steps_before_the_checkpoint_are_carried_over_once(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (old / "metrics.jsonl").write_text(lines(0, 1, 2, 2, 3, 4) + '{"step": 5, "lo')
    carry_metrics(old, new, 3)
    assert (new / "metrics.jsonl").read_text() == lines(0, 1, 2)
    carry_metrics(old, old, 5)
    assert (old / "metrics.jsonl").read_text() == lines(0, 1, 2, 3, 4)
    carry_metrics(old, old, 0)
    assert (old / "metrics.jsonl").read_text() == ""


def test_every_start_is_noted_after_those_before_it(tmp_path):
    add_start(tmp_path, tmp_path, {"first_step": 0})
    add_start(tmp_path, tmp_path, {"first_step": 7})
    assert [each["first_step"] for each in json.loads((tmp_path / "history.json").read_text())["starts"]] == [0, 7]
