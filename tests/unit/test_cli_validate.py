"""`hpcpipe validate` and the printing of faults: exit codes, one JSON document, carets under what is meant."""

import json
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_text import VALID, faults_of, write_job
from rich.cells import cell_len
from rich.console import Console

from hpcpipe.cli import main
from hpcpipe.cli.faults import print_faults


def printed(path: Path, *overrides: str, width: int = 80) -> list[str]:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    print_faults(faults_of(path, *overrides), console)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_valid_job_ends_with_0_and_says_how_many_ranks_it_needs(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["validate", str(write_job(tmp_path))])
    assert result.exit_code == 0
    assert "valid; 2 ranks (pipeline 2 x data 1 x tensor 1), 100 steps" in result.stdout


def test_a_wrong_job_ends_with_2_and_writes_to_stderr_only(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("heads = 4", "heads = 0"))
    result = CliRunner().invoke(main, ["validate", str(path), "--set", "job.steps=0", "--ranks", "2"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{path}:5:9" in result.stderr
    assert "the 1st --set, column 11" in result.stderr
    assert "2 faults found; nothing was started" in result.stderr
    assert "Traceback" not in result.stderr


def test_json_is_one_document_with_the_promised_keys(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("heads = 4", 'heads = "ü"'))
    result = CliRunner().invoke(main, ["validate", str(path), "--json"])
    assert result.exit_code == 2
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert (document["format"], document["ok"]) == ("hpcpipe-validate", False)
    assert document["faults"] == [
        {
            "file": str(path),
            "line": 5,
            "column": 9,
            "key": "model.heads",
            "message": 'heads must be a whole number, got the text "ü"',
            "hint": "for example heads = 4",
        }
    ]
    good = CliRunner().invoke(main, ["validate", str(write_job(tmp_path)), "--json"])
    assert good.exit_code == 0
    assert json.loads(good.stdout)["ok"] is True


def test_a_fault_is_printed_like_a_compilers(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID.replace("heads = 4", "heads = 5  # few"))
    assert printed(path, width=200) == [
        "error: heads = 5 does not divide dim = 64",
        f" --> {path}:5:9",
        "  |",
        "5 | heads = 5  # few",
        "  |         ^",
        "  = help: set dim to a multiple of 5, such as 60 or 65, or change heads",
        "",
        "1 fault found; nothing was started",
    ]


@pytest.mark.parametrize(
    "line",
    [
        'job = { name = "模型模型", steps = 0 }',
        '\tjob\t=\t{ name = "a", steps = 0 }',
        "job = { " + " " * 200 + "steps = 0 }  # " + "x" * 200,
        'job = { name = "' + "漢" * 60 + '", steps = 0 }',
    ],
)
def test_the_caret_stands_under_the_value_and_no_line_is_too_wide(tmp_path: Path, line: str) -> None:
    lines = printed(write_job(tmp_path, line + "\n" + VALID))
    source = next(row for row in lines if row.startswith("1 | "))
    caret = next(row for row in lines if row.endswith("^"))
    before = source[: source.index("0 }")]
    assert cell_len(caret) - 1 == cell_len(before)
    assert all(cell_len(row) <= 80 for row in (source, caret))


def test_what_would_drive_the_terminal_is_not_printed(tmp_path: Path) -> None:
    lines = printed(write_job(tmp_path), "job.steps=\x1b[31mred")
    assert not any("\x1b" in line for line in lines)


def test_square_brackets_are_printed_and_not_taken_for_markup(tmp_path: Path) -> None:
    assert "error: unknown table [bold]" in printed(write_job(tmp_path, VALID + "[bold]\n"))
