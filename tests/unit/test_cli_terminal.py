"""What commands print on terminals of any width, without colours where they are not wanted, and under --debug."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_text import write_job

from hpcpipe.cli import main
from hpcpipe.cli.terminal import COLUMNS_VARIABLE, make_console

ROOT = Path(__file__).parents[2]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_a_prediction_keeps_its_names_and_figures_whole_on_any_terminal(monkeypatch, columns):
    """Where a terminal has no room for all classes, the least of them are left out, nothing is cut."""
    monkeypatch.setenv(COLUMNS_VARIABLE, str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    job = str(ROOT / "jobs" / "kfkb_tuning.toml")
    result = CliRunner().invoke(main, ["simulate", job, "--steps", "2", "--compare", "kfkb:k=4:fixed,bf:in_flight=2x"])
    assert result.exit_code == 0, result.stderr
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in result.stdout.splitlines()]
    assert all(len(line.rstrip()) <= columns for line in lines)
    rows = [line for line in lines if line.startswith((" fixed", " ready"))]
    assert [re.split(r"\s{2,}", row.strip())[0] for row in rows] == [
        "fixed kfkb k=1",
        "fixed kfkb k=4",
        "ready bf 2x",
        "fixed 1f1b",
    ]
    table = "\n".join(lines[: lines.index(rows[-1]) + 1])
    assert "…" not in table
    assert all(row.count("%") >= 2 for row in rows)


@pytest.mark.parametrize("wanted", [True, False])
def test_no_color_leaves_the_colours_out_on_a_terminal(monkeypatch, capsys, wanted):
    monkeypatch.setenv(COLUMNS_VARIABLE, "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not wanted:
        monkeypatch.setenv("NO_COLOR", "1")
    make_console().print("[red]late[/red] message")
    assert bool(COLOUR.search(capsys.readouterr().out)) == wanted


@pytest.mark.parametrize("words", [["validate"], ["run", "--dry-run"], ["simulate"]])
def test_a_fault_of_the_user_has_no_traceback_under_debug_either(tmp_path, words):
    path = write_job(tmp_path, "[model]\nkind = 7\n")
    result = CliRunner().invoke(main, ["--debug", words[0], str(path), *words[1:]])
    assert result.exit_code == 2
    assert "Traceback" not in result.stdout + result.stderr
    assert "faults found" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_and_options(monkeypatch, shell):
    monkeypatch.setenv("_HPCPIPE_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", "hpcpipe simu")
    monkeypatch.setenv("COMP_CWORD", "1" if shell != "fish" else "simu")
    result = CliRunner().invoke(main, [], prog_name="hpcpipe", complete_var="_HPCPIPE_COMPLETE")
    assert "simulate" in result.output
    monkeypatch.setenv("COMP_WORDS", "hpcpipe simulate --com")
    monkeypatch.setenv("COMP_CWORD", "2" if shell != "fish" else "--com")
    result = CliRunner().invoke(main, [], prog_name="hpcpipe", complete_var="_HPCPIPE_COMPLETE")
    assert "--compare" in result.output


def _shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which `hpcpipe` stands for the command."""
    command = line.replace("hpcpipe", f"{shlex.quote(sys.executable)} -m hpcpipe")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["/bin/sh", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_report_is_printed_where_the_terminal_s_signs_are_ascii(tmp_path):
    shutil.copy(ROOT / "jobs" / "kfkb_tuning.toml", tmp_path / "job.toml")
    found = _shell("hpcpipe simulate job.toml --steps 2", tmp_path, PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert (found.returncode, found.stderr) == (0, "")
    assert "fixed kfkb k=1" in found.stdout


@pytest.mark.parametrize(("where", "code"), [(">&-", 0), (">&- 2>&-", 0), (">/dev/full", 3)])
def test_a_stream_that_is_closed_or_full_is_no_internal_error(tmp_path, where, code):
    found = _shell(f"hpcpipe validate {write_job(tmp_path).name} {where}", tmp_path)
    assert found.returncode == code
    assert found.stderr == ("hpcpipe: No space left on device\n" if code else "")


def test_a_removed_current_folder_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    found = _shell("cd gone && rmdir ../gone && hpcpipe validate job.toml", tmp_path)
    assert (found.returncode, found.stdout) == (3, "")
    assert "the current folder has been removed" in found.stderr


def test_a_width_that_is_none_is_left_out(monkeypatch):
    for word in ("abc", "-5", "0", ""):
        monkeypatch.setenv(COLUMNS_VARIABLE, word)
        assert make_console().width == 100
