"""The page about the event log says of every column what the format's own table says, and its two lines work."""

import re
from pathlib import Path

import pytest
from synthetic_log import Pipeline, write_run

from hpcpipe.events.schema import GROUPS, RANK, RANKS, SCHEMA_VERSION, Column

PAGE = (Path(__file__).parents[2] / "docs" / "event-log.md").read_text(encoding="utf-8")
TYPES = {"<i8": "i8", "<i4": "i4", "<i2": "i2", "|u1": "u1", "<f8": "f8", "S64": "text, 64", "S256": "text, 256"}


def row(column: Column) -> str:
    """Return the line of a column in the page's tables."""
    units = "" if column.units == "1" else column.units
    return f"| `{column.name}` | {TYPES[column.dtype]} | {units} | {column.description} |"


@pytest.mark.parametrize("group", [*GROUPS, "ranks"])
def test_every_column_of_a_group_stands_in_the_page_in_order_and_no_other(group: str) -> None:
    section = PAGE.partition(f"### `{group}`\n")[2].partition("\n##")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row(column) for column in (RANKS if group == "ranks" else GROUPS[group])]


def test_the_page_names_the_format_version_the_column_of_a_node_and_all_codes() -> None:
    assert f"`{SCHEMA_VERSION}`" in PAGE
    assert RANK.description in PAGE
    for column in GROUPS["events"]:
        for code, name in enumerate(column.names):
            assert f"{code} {name}" in PAGE


@pytest.mark.parametrize("name", ["h5py", "pandas"])
def test_the_two_lines_that_read_a_log_work_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip(name)
    write_run(tmp_path, Pipeline(2, 2, 10, 20))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    lines = next(block for block in blocks if block.splitlines()[0].endswith(name))
    assert len(list(filter(None, lines.splitlines()))) == 2
    names: dict[str, object] = {}
    exec(lines, names)
    assert len(names["events"]) > 0  # type: ignore[arg-type]
