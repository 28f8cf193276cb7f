"""What the package says of itself, in one place each: its version, its licence, the papers to cite."""

import re
import tomllib
from pathlib import Path

import pytest

import hpcpipe

ROOT = Path(__file__).parents[2]
PAPERS = {"2303.01675", "2302.12445", "2605.18750"}


def test_the_version_stands_in_meson_build_and_is_what_is_installed():
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]
    assert hpcpipe.__version__ == version
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dynamic"] == ["version"]
    files = [ROOT / "CITATION.cff", ROOT / "pyproject.toml", ROOT / "mkdocs.yml", *(ROOT / "hpcpipe").glob("*.py")]
    assert not [path for path in files if re.search(rf"\bversion\b.*{re.escape(version)}", path.read_text())]


def test_the_citation_file_names_the_papers_and_the_licence_of_the_package():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    cited = {each["value"].removeprefix("arXiv:") for work in citation["references"] for each in work["identifiers"]}
    assert cited == PAPERS
    page = (ROOT / "docs" / "papers.md").read_text()
    for work in citation["references"]:
        assert " ".join(work["title"].split()) in " ".join(page.split())
        assert all(author["family-names"] in page for author in work["authors"])


def test_every_extra_that_is_named_in_a_message_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        name
        for path in [*(ROOT / "hpcpipe").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
        for group in re.findall(r"(?:hpcpipe|whl)\[([a-z,]+)\]", path.read_text(encoding="utf-8"))
        for name in group.split(",")
    }
    assert {"plots", "docs"} <= named <= set(extras)


def test_the_recipe_for_spack_wants_what_the_package_wants():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in project["dependencies"])
    wanted["matplotlib"] = re.fullmatch(r"matplotlib>=([\d.]+)", *project["optional-dependencies"]["plots"])[1]
    page = (ROOT / "docs" / "how-to" / "containers.md").read_text()
    recipe = page.partition("class Hpcpipe")[2].partition("```")[0]
    said = dict(re.findall(r'"(?:py-)?([a-z0-9-]+)@([\d.]+):', recipe))
    assert {name: said.get(name) for name in wanted} == wanted
