"""What the pages name exists: files behind links, options of commands, keys of the job file."""

import re
import tomllib
from pathlib import Path

import click
import pytest

from hpcpipe.cli import main
from hpcpipe.job.schema import TABLES, VARIANTS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MADE = [
    ROOT / "docs" / "assets" / "made",
    *(ROOT / "docs/reference" / f"{name}.md" for name in ("job-file", "commands", "exit-codes", "changelog")),
]
"""What only the site's build makes, and checks."""


def keys(table):
    return {"kind"}.union(*(section.model_fields for section in [TABLES[table], *VARIANTS.get(table, {}).values()]))


def options(words):
    """Return the options of a command, and those of the groups above it."""
    command, found = main, {name for each in main.params for name in each.opts}
    for word in words:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        found |= {name for each in command.params for name in each.opts} if command else set()
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_options_and_keys_of_a_page_exist(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    there = [(page.parent / link).resolve() for link in links]
    assert not [each for each in there if not each.exists() and each not in MADE and each.parent not in MADE]
    for line in re.findall(
        r"\bhpcpipe ((?:run|validate|submit|simulate|tune|analyze|bench|doctor|checkpoint)\b[^`#\n]*)", text
    ):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)) <= options(line.split()[:2]), line
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        for table, entries in tomllib.loads(block).items():
            assert set(entries) <= keys(table), (table, block)
    for table, key in re.findall(r"`\[([a-z]+)\] ([a-z_]+)", text):
        assert key in keys(table), f"[{table}] {key}"


def test_the_page_on_design_shows_the_layers_that_lint_holds():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    *layers, helpers = next(each["layers"] for each in contracts if each["type"] == "layers")
    assert "exit_code" in helpers
    assert "\n".join(["```", *layers, "```"]) in (ROOT / "docs" / "design.md").read_text()
    rooms = {name for layer in layers for name in layer.split(" | ")}
    named = set(re.findall(r"^hpcpipe/(\w+)/ ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert named == rooms
