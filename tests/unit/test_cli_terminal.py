"""What commands print on terminals of any width, without colours where they are not wanted, and under --debug."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from job_text import write_job
from rich import box
from rich.console import Console
from rich.table import Table

from hpcpipe.analyze import drawing
from hpcpipe.cli import main
from hpcpipe.cli.start import start_ranks
from hpcpipe.cli.terminal import COLUMNS_VARIABLE, make_console, print_table, say, suggest
from hpcpipe.exit_code import ExitCode
from hpcpipe.job import load_job

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


def test_lines_of_a_file_end_with_their_last_sign(tmp_path):
    """rich fills lines to the width of their table or paragraph."""
    job = str(ROOT / "jobs" / "kfkb_tuning.toml")
    broken = write_job(tmp_path, "[model]\nkind = 7   \n")
    for words, code in (
        (["simulate", job, "--steps", "2"], 0),
        (["run", job, "--dry-run"], 0),
        (["bench", "gpu"], 0),
        (["validate", str(broken)], 2),
    ):
        found = CliRunner().invoke(main, words)
        assert found.exit_code == code, found.output
        lines = found.output.splitlines()
        assert len(lines) > 3
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_width_that_is_none_is_left_out(monkeypatch):
    for word in ("abc", "-5", "0", ""):
        monkeypatch.setenv(COLUMNS_VARIABLE, word)
        assert make_console().width == 100


WORD = st.text("abcdefgh", min_size=1, max_size=9)
HEADING = st.lists(WORD, min_size=1, max_size=4).map(" ".join)


@given(columns=st.integers(24, 90), headings=st.lists(HEADING, min_size=2, max_size=9), data=st.data())
def test_a_table_keeps_every_cell_whole_on_any_terminal(columns, headings, data):
    """The first column stands beside every figure, and no line is wider than the terminal."""
    rows = [[data.draw(WORD) for _ in headings] for _ in range(3)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(force_terminal=True, width=columns, record=True, file=StringIO())
    print_table(console, table)
    lines = console.export_text().splitlines()
    assert all(len(line) <= columns for line in lines)
    body = [line.split() for line in lines]
    for row in rows:
        beside = [line[1:] for line in body if line[:1] == row[:1]]
        for cell in row[1:]:
            assert any(cell in line for line in beside)


def test_a_table_of_any_width_is_whole_in_a_file(capsys):
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number in range(30):
        table.add_column(f"column {number}", no_wrap=True)
    table.add_row(*(f"cell {number}" for number in range(30)))
    console = make_console()
    print_table(console, table)
    headings, _, cells = filter(None, capsys.readouterr().out.splitlines())
    assert re.split(" {2,}", headings.strip()) == [f"column {number}" for number in range(30)]
    assert re.split(" {2,}", cells.strip()) == [f"cell {number}" for number in range(30)]
    assert console.width == 100, "sentences are folded as before"


def test_a_sentence_is_folded_between_words_and_a_command_that_can_be_copied_never(monkeypatch, capsys):
    path = "/scratch/a/very/long/path/of/a/run/that/has/no/room/on/one/line/of/this/terminal"
    say(f"one two three four five six seven eight {path}")
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setenv(COLUMNS_VARIABLE, "40")
    say(f"one two three four five six seven eight {path}")
    assert capsys.readouterr().out == f"one two three four five six seven eight\n{path}\n"
    suggest("to train it", "run", f"{path}/job.toml", overrides=["job.name=c", 'job.name="a b"'])
    command = f"hpcpipe run {path}/job.toml --set 'job.name=\"a b\"'"
    assert capsys.readouterr().out == f"to train it:\n  {command}\n"


@pytest.mark.parametrize(
    "words",
    ["simulate JOB --plot", "tune JOB --plot", "bench preempted --plot", "analyze JOB --plot", "analyze JOB --html"],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    command = [str(write_job(tmp_path)) if word == "JOB" else word for word in words.split()]
    result = CliRunner().invoke(main, [*command, "nowhere/x.png"])
    assert result.exit_code == 2
    assert "nowhere/x.png: cannot be written: there is no folder nowhere; make it first" in result.stderr
    if command[-1] == "--plot":
        result = CliRunner().invoke(main, [*command, "x.jpg"])
        assert result.exit_code == 2
        assert "x.jpg: cannot draw a .jpg; use .png or .svg" in result.stderr


def test_a_picture_without_matplotlib_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "find_spec", lambda _name: None)
    monkeypatch.setattr("hpcpipe.job.load_job", lambda *_, **__: pytest.fail("the work began"))
    result = CliRunner().invoke(main, ["tune", str(write_job(tmp_path)), "--plot", str(tmp_path / "x.png")])
    assert result.exit_code == 2
    assert "pip install 'hpcpipe[plots]'" in " ".join(result.stderr.split())


def test_a_picture_of_no_known_name_is_refused(tmp_path):
    result = CliRunner().invoke(main, ["analyze", str(tmp_path), "--plot", "gant:x.png"])
    assert result.exit_code == 2
    assert "there is no picture gant; there are gantt, classes" in result.stderr


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["simulate", "--compare", "bf,1f1b:k=2"], "--compare 1f1b:k=2"),
        (["simulate", "--set", "job.steps=4", "--compare", "1f1b:k=2"], "--compare 1f1b:k=2"),
        (["submit", "--dry-run", "--sweep", "optimizer.lr=1,-1"], "--sweep optimizer.lr=-1"),
    ],
)
def test_a_fault_of_a_setting_that_an_option_stands_for_names_the_option(tmp_path, words, option):
    result = CliRunner().invoke(main, [words[0], str(write_job(tmp_path)), *words[1:]])
    assert result.exit_code == 2
    assert f"--> {option}\n" in result.stderr


def test_ctrl_c_ends_a_command_with_130_and_a_sentence(monkeypatch, tmp_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcpipe.job.load_job", interrupt)
    result = CliRunner().invoke(main, ["validate", str(write_job(tmp_path))])
    assert result.exit_code == 130
    assert result.stderr.strip() == "hpcpipe: interrupted; the same command starts anew"


def test_an_interrupted_run_with_a_checkpoint_says_how_to_resume_with_the_settings_of_the_command(
    monkeypatch, tmp_path, capsys
):
    path = write_job(tmp_path)

    def interrupted(_command, _ranks, directory, _extra):
        (step := directory / "checkpoints" / "step_00000004").mkdir(parents=True)
        (step / "manifest.json").write_text("{}")
        return ExitCode.INTERRUPTED

    monkeypatch.setattr("hpcpipe.cli.start.launch", interrupted)
    overrides = ["optimizer.lr=0.5", 'job.name="a b"']
    assert start_ranks(load_job(path, overrides), path, tmp_path / "run", overrides=overrides) == ExitCode.INTERRUPTED
    command = f"hpcpipe run {path} --resume {tmp_path / 'run'} --set optimizer.lr=0.5 --set 'job.name=\"a b\"'"
    assert capsys.readouterr().err == f"hpcpipe: interrupted; to resume from its last checkpoint: {command}\n"


@pytest.mark.parametrize("words", [["--rate", "5gbit"], ["--model", "gpt-9"], ["--ranks", "1"]])
def test_a_wrong_choice_of_a_benchmark_ends_with_2(words):
    result = CliRunner().invoke(main, ["bench", "dataparallel", *words])
    assert result.exit_code == 2
    assert result.stderr.startswith("hpcpipe: ")


def test_an_option_that_a_benchmark_does_not_take_is_answered_with_those_that_it_takes():
    result = CliRunner().invoke(main, ["bench", "paper-rrfp", "--ranks", "2"])
    assert result.exit_code == 2
    assert "does not take --ranks; it takes --steps" in result.stderr
