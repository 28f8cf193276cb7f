"""The command itself: what it lists, what it never imports, and how it ends."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from job_text import write_job

from hpcpipe.cli import main
from hpcpipe.cli.main import COMMANDS

HEAVY = ("mpi4py", "torch", "h5py", "matplotlib", "hpcpipe._native")


def test_help_lists_every_command_and_the_exit_codes() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, (_, line) in COMMANDS.items():
        assert name in result.stdout
        assert line in result.stdout
    assert "3  the environment does" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())


def _commands(command: click.Command = main, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    context = click.Context(command)
    below = command.list_commands(context) if isinstance(command, click.Group) else []
    found = [(name, command.get_command(context, name)) for name in below]  # type: ignore[attr-defined]
    return [words, *(each for name, inner in found if inner for each in _commands(inner, (*words, name)))]


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_every_help_text_fits_the_terminal_is_whole_and_has_examples(words: tuple[str, ...], columns: int) -> None:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=columns, prog_name="hpcpipe")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if len(line) > columns] == []
    assert not [line for line in lines if line.endswith("...") and "COMMAND" not in line and "RUN" not in line]
    examples = result.stdout.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert examples
    assert all(" ".join(["hpcpipe", *words]) in line for line in examples)


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_every_option_that_takes_a_value_and_is_no_list_has_a_default_or_says_what_it_adds(
    words: tuple[str, ...],
) -> None:
    """In the same words everywhere, `[default: …]`; two numbers only add something."""
    command, context = main, click.Context(main)
    for word in words:
        command = command.get_command(context, word)  # type: ignore[attr-defined, assignment]
    numbers = [
        option
        for option in command.params
        if isinstance(option, click.Option)
        and isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    ]
    optional = {"validate": {"ranks"}, "analyze": {"peak_tflops"}}.get(" ".join(words), set())
    assert {option.name for option in numbers if not option.show_default} == optional


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_is_listed_is_there(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "run --help",
        "validate --help",
        "analyze --help",
        "doctor --help",
        "validate JOB",
        "submit JOB --dry-run",
    ],
)
def test_help_and_validate_import_neither_mpi_nor_torch(tmp_path: Path, words: str) -> None:
    arguments = [str(write_job(tmp_path)) if word == "JOB" else word for word in words.split()]
    code = f"""
import sys
from hpcpipe.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code in (0, None), end.code
heavy = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("words", "most"), [("--help", 120), ("validate JOB", 400), ("submit JOB --dry-run", 400)])
def test_the_number_of_modules_that_a_shared_file_system_is_asked_for_is_bounded(
    tmp_path: Path, words: str, most: int
) -> None:
    """Counted and not timed: 60 and 250 modules are 0.05 and 0.2 s on a local disk, and each is several look-ups."""
    arguments = [str(write_job(tmp_path)) if word == "JOB" else word for word in words.split()]
    code = f"""
import sys
before = set(sys.modules)
from hpcpipe.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(len(set(sys.modules) - before), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert 0 < int(done.stderr.splitlines()[-1]) <= most


def test_a_rank_that_has_not_met_the_others_has_not_started_mpi() -> None:
    """Before MPI starts signals are caught, somebody is found who speaks should MPI end the rank, and git is asked."""
    code = "import sys, hpcpipe.cli.rank; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_listing_the_commands_imports_none_of_them() -> None:
    code = """
import sys
from hpcpipe.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
loaded = [name for name in sys.modules if name.startswith(("hpcpipe.job", "hpcpipe.cli.run", "pydantic", "rich"))]
sys.exit(f"imported {loaded}" if loaded else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["valdate", "x.toml"], "did you mean 'validate'?"),
        (["job.toml"], "to train it: hpcpipe run job.toml"),
        (["frobnicate"], f"there are {', '.join(COMMANDS)}"),
        (["validate"], "Missing argument"),
        (["validate", "x.toml", "--ranks", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_what_was_meant(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_version_is_shown() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout.startswith("hpcpipe 0")


@pytest.mark.parametrize(("error", "code"), [(ZeroDivisionError("odd"), 1), (ImportError("no such MPI"), 3)])
def test_an_unexpected_error_is_one_line_and_its_traceback_waits_for_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    def fail(ctx: click.Context, name: str) -> click.Command:
        raise error

    monkeypatch.setattr(main, "get_command", fail)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "x"])
    assert ended.value.code == code
    said = capsys.readouterr().err
    assert str(error) in said
    assert "Traceback" not in said
    with pytest.raises(type(error)):
        main(["--debug", "validate", "x"])


def test_the_module_can_be_run_as_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpcpipe", "validate", str(tmp_path / "none.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no such file" in done.stderr
