"""`--set`: typed as in TOML, words without quotes, and faults that say which `--set` they are in."""

from pathlib import Path

import pytest
from job_text import VALID, fault_of, faults_of, place, write_job

from hpcpipe.job import load_job


def test_values_are_typed_as_in_toml_and_the_last_one_wins(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    job = load_job(
        path,
        [
            "job.steps=7",
            "job.steps = 9",
            "optimizer.lr=1e-4",
            "events.on=false",
            "parallel.split=[1, 3]",
            'job.name="a b"',
            "schedule.in_flight=1.5x",
            "schedule.hint=1f1b",
        ],
    )
    assert (job.run.steps, job.optimizer.lr, job.events.on, job.parallel.split) == (9, 1e-4, False, (1, 3))
    assert (job.run.name, job.schedule.in_flight, job.schedule.hint) == ("a b", "1.5x", "1f1b")


def test_a_path_needs_no_quotes(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    other = tmp_path / "it's other.txt"
    other.write_text("x" * 100)
    assert load_job(path, [f'data.path="{other}"']).data.resolved_path == other
    (tmp_path / "other.txt").write_text("x" * 100)
    assert load_job(path, ["data.path=other.txt"]).data.resolved_path == tmp_path / "other.txt"


def test_an_override_mends_a_fault_of_the_file(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("layers = 4", 'layers = "four"'))
    assert load_job(path, ["model.layers=4"]).model.layers == 4


def test_faults_of_overrides_say_which_one_and_come_after_those_of_the_file(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("heads = 4", "heads = 0"))
    faults = faults_of(path, "job.steps=3", "model.layerz=4", "batch.microbatches=none", "shedule.hint=bf")
    assert [(fault.file, *place(fault), fault.key) for fault in faults] == [
        (str(path), 5, 9, "model.heads"),
        ("--set", 2, 1, "model.layerz"),
        ("--set", 3, 20, "batch.microbatches"),
        ("--set", 4, 1, "shedule"),
    ]
    assert faults[1].hint == "did you mean layers?"
    assert faults[3].hint == "did you mean [schedule]?"
    assert faults[2].source == "batch.microbatches=none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job.steps", "an override needs a value"),
        ("steps=3", "names no table"),
        ("=3", "names no table"),
        ("", "an override needs a value"),
        ("job.steps=", "is given no value"),
        ("job.steps.more=3", "more than two parts"),
        ("parallel.split=[1, 2", "unclosed array"),
        ('job.name="x', ""),
        ("job.steps=1\nmodel.layers=9", "sets one key"),
        ("job.steps=1\n[model]\nlayers=9", "sets one key"),
        ("model={layers = 3}", "names no table"),
    ],
)
def test_an_override_that_cannot_be_read_is_a_fault(tmp_path: Path, text: str, message: str) -> None:
    fault = fault_of(write_job(tmp_path), text)
    assert (fault.file, fault.line) == ("--set", 1)
    assert message in fault.message
    assert fault.hint


def test_an_entry_of_an_overriding_list_is_found(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path), "parallel.split=[4, 0]")
    assert place(fault) == (1, 20)


def test_faults_of_overrides_are_reported_even_when_the_file_cannot_be_read(tmp_path: Path) -> None:
    faults = faults_of(tmp_path / "missing.toml", "steps=3")
    assert [fault.file for fault in faults] == [str(tmp_path / "missing.toml"), "--set"]
