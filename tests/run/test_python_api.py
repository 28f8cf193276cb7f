"""The Python API as its page shows it, from a job to a run's analysis, and runs that fail."""

import doctest

import pytest
from command import ROOT

import hpcpipe

PAGE = ROOT / "docs" / "reference" / "python-api.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_the_page_do_what_it_says(folder):
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert tried > 15
    assert failed == 0


def test_a_run_that_fails_says_why_and_where(folder):
    settings = {"parallel.pipeline": 2, "job.name": "failing", "job.steps": 2}
    with pytest.raises(hpcpipe.RunFailedError, match="does not exist") as failed:
        hpcpipe.run("jobs/emulated.toml", settings, resume=folder / "nowhere")
    assert failed.value.exit_code == 2
    assert failed.value.directory.parent.name == "failing"
