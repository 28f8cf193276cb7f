"""What a good job becomes: defaults, derived values, the resolved text, and a schema whose every key is documented."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pydantic
import pytest
from job_text import VALID, write_job

from hpcpipe.job import load_job
from hpcpipe.job.explain import example_value
from hpcpipe.job.schema import TABLES


def test_what_is_left_out_gets_its_default_or_comes_from_elsewhere(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    assert job.run.name == "small"
    assert job.data.seq_len == job.model.context == 32
    assert job.data.resolved_path == tmp_path / "corpus.txt"
    assert job.parallel.ranks == 2
    assert (job.schedule.hint, job.schedule.dispatch, job.schedule.in_flight) == ("critical", "ready", "equal-memory")
    assert job.run.run_dir == Path("runs")


def test_the_resolved_job_holds_every_key_and_loads_from_anywhere_to_the_same_job(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, VALID + "split = [1, 3]\n"), ["schedule.in_flight=[2, 1]"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "job.toml").write_text(job.to_toml(), encoding="utf-8")
    again = load_job(elsewhere / "job.toml")
    assert again.to_toml() == job.to_toml()
    assert again.sha256 == job.sha256
    assert again.run.name == "small"
    tables = tomllib.loads(job.to_toml())
    assert {name: set(table) for name, table in tables.items()} == {
        name: set(section.model_fields) for name, section in TABLES.items()
    }


def test_the_digest_follows_the_job(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    assert load_job(path).sha256 != load_job(path, ["job.seed=1"]).sha256


def test_a_job_cannot_be_changed(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    with pytest.raises(pydantic.ValidationError):
        job.model.layers = 5


def test_a_package_s_file_is_found_without_importing_the_package(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("corpus.txt", "package:pydoc_data/topics.py"))
    code = f"""
import sys
from pathlib import Path
from hpcpipe.job import load_job
job = load_job(Path({str(path)!r}))
assert job.data.resolved_path.name == "topics.py"
assert "pydoc_data" not in sys.modules
assert 'path = "package:pydoc_data/topics.py"' in job.to_toml()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_file_of_an_editable_install_is_found(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, VALID.replace("corpus.txt", "package:hpcpipe/__init__.py")))
    assert job.data.resolved_path.is_file()


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_described_and_its_example_is_valid(table: str) -> None:
    section = TABLES[table]
    for name, field in section.model_fields.items():
        assert field.description, name
    section.model_validate({name: example_value(field) for name, field in section.model_fields.items()})


def test_a_job_in_a_folder_with_spaces_and_quotes_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "dir with space" / "a'b"
    folder.mkdir(parents=True)
    job = load_job(write_job(folder))
    assert job.data.resolved_path.is_file()
    assert str(folder) in job.to_toml()
