"""`[tune] fusion`, and how many chunks a stage has that is alone in its replica."""

import sys
from pathlib import Path

import pytest
from job_text import SYNTHETIC, VALID, fault_of, faults_of, write_job

from hpcpipe.job import load_job
from hpcpipe.train import Layout

EMULATED = f"""\
{SYNTHETIC}\
forward_ms = 5
backward_ms = 10
[parallel]
data = 2
[schedule]
hint = "bf"
[tune]
fusion = "on"
"""
ON = 'tune.fusion="on"'


def test_the_size_of_buckets_is_looked_for_only_where_the_job_says_so(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert load_job(write_job(tmp_path), ["parallel.data=2"]).tune.fusion == "off"
    assert load_job(write_job(tmp_path), ["parallel.data=2", ON]).tune.fusion == "on"


def test_one_replica_has_nothing_to_fuse(tmp_path: Path) -> None:
    (fault,) = faults_of(write_job(tmp_path), ON)
    assert fault.key == "tune.fusion"
    assert "data = 1: one replica exchanges no gradients" in fault.message
    assert "[parallel] data to at least 2" in fault.hint


def test_an_emulated_device_has_nothing_to_fuse(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, EMULATED, corpus=None))
    assert (fault.key, fault.line) == ("tune.fusion", 14)
    assert "an emulated device has no gradients" in fault.message


def test_the_grouping_does_not_change_while_bucket_sizes_are_compared(tmp_path: Path) -> None:
    kfkb = ("schedule.hint=kfkb", "tune.grouping=on", "tune.memory_limit=8 GiB")
    (fault,) = faults_of(write_job(tmp_path), "parallel.data=2", ON, *kfkb)
    assert fault.key == "tune.fusion"
    assert "look for one after the other" in fault.hint


def test_a_library_that_is_missing_is_a_fault_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    monkeypatch.setattr("hpcpipe.job.fusion_checks.find_spec", lambda name: None if name == "sklearn" else object())
    (fault,) = faults_of(write_job(tmp_path), "parallel.data=2", ON)
    assert "pip install 'hpcpipe[tune]'" in fault.hint


@pytest.mark.parametrize(
    ("overrides", "chunks"),
    [
        ([], 4),  # one a layer
        (["model.layers=12"], 8),
        (["model.layers=12", "schedule.hint=interleaved"], 8),
        (["model.layers=12", "parallel.chunks=3"], 3),
        (["model.layers=12", "parallel.chunks=1"], 1),
        (["model.layers=12", "parallel.split=[2,4,6]"], 3),
        (["model.layers=12", "schedule.hint=bf"], 1),  # rules rank a task of any chunk alike
        (["model.layers=12", "schedule.hint=1f1b"], 1),
        (["model.layers=12", "parallel.data=1"], 1),  # there is nothing to hide
        (["model.layers=12", "parallel.pipeline=2"], 2),
    ],
)
def test_a_stage_alone_in_its_replica_is_cut_into_up_to_eight_chunks(
    tmp_path: Path, overrides: list[str], chunks: int
) -> None:
    job = load_job(write_job(tmp_path, VALID), ["parallel.pipeline=1", "parallel.data=2", *overrides])
    assert job.chunks == chunks
    again = tmp_path / "again.toml"
    again.write_text(job.to_toml(), encoding="utf-8")
    assert load_job(again).chunks == chunks
    said = [notice for notice in Layout.of(job).notices if "[parallel] chunks" in notice]
    chosen = "parallel.chunks=3" not in overrides and "parallel.pipeline=2" not in overrides
    assert len(said) == (chosen and chunks > 1)
