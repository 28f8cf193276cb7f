"""The command `hpcpipe`: a group whose subcommands are imported when they are called, so that `--help` stays quick.

It must not import what a command needs, and least of all MPI or torch.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from hpcpipe.cli.garbage import collect_seldom
from hpcpipe.exit_code import ExitCode

COMMANDS = {
    "run": ("hpcpipe.cli.run:run", "Train the model that JOB.toml describes."),
    "validate": ("hpcpipe.cli.validate:validate", "Check JOB.toml and report every fault at once."),
    "submit": ("hpcpipe.cli.submit:submit", "Hand JOB.toml to Slurm: render its batch script and sbatch it."),
    "simulate": ("hpcpipe.cli.simulate:simulate", "Predict what JOB.toml would cost under several schedules."),
    "tune": ("hpcpipe.cli.tune:tune", "Find the group and the size of micro-batches that suit JOB.toml."),
    "analyze": ("hpcpipe.cli.analyze:analyze", "Say where the time of a run went."),
    "bench": ("hpcpipe.cli.bench:bench", "Run a benchmark that the documentation quotes."),
    "checkpoint": ("hpcpipe.cli.checkpoint:checkpoint", "Look at checkpoints, check, export or reshape them."),
    "doctor": ("hpcpipe.cli.doctor:doctor", "Check MPI, launcher, GPUs, files and clock; say what to do."),
}
"""What each command is imported from, and its line in `--help`, so that listing the commands imports none."""


class LazyGroup(click.Group):
    """Imports a command when it is asked for, and turns what escapes from it into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names of the commands in the order in which users meet them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was meant."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            ctx.fail(f"no such command {name!r}; {_advice(name)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a wrong command line is told in lines that fit the terminal."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from hpcpipe.cluster.environment import world

            if world() is None:  # who has started these ranks says it once for all of them
                click.echo("\nhpcpipe: interrupted; the same command starts anew", err=True)
            sys.exit(ExitCode.INTERRUPTED)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            from hpcpipe.cli.terminal import fold

            words = fold(f"Error: {error.format_message()}", sys.stderr).removeprefix("Error: ")
            raise click.UsageError(words, error.ctx) from None

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """Run the command line; a traceback is shown only under `--debug`."""
        words = list(sys.argv[1:] if args is None else args)
        _settle_streams()
        collect_seldom()
        try:
            return super().main(words, *rest, **extra)
        except Exception as error:
            if "--debug" in words[: _command_index(words)]:
                raise
            _explain(error)


def _settle_streams() -> None:
    """Let nothing that is printed fail: a stream that was closed swallows it, one that is not UTF-8 replaces signs."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding != "utf-8"):
            stream.reconfigure(errors="replace")


_MACHINE = {errno.EACCES, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS}
"""What a file system or a machine refuses, whatever the program does."""

_USERS = ("UserCodeError", "WrongModelError")
"""Errors of a model or of data of the user's own, by name: what defines them is not imported here."""


def _explain(error: Exception) -> None:
    """Say what went wrong without a traceback and leave with the exit code that fits."""
    from hpcpipe.cli.terminal import refuse

    if type(error).__name__ in _USERS:
        refuse(str(error))
    if isinstance(error, ImportError) and not (error.name or "").startswith("hpcpipe."):
        refuse(f"{error}\n`hpcpipe doctor` says what this environment lacks", ExitCode.ENVIRONMENT)
    if isinstance(error, OSError) and error.errno in _MACHINE:
        place = f"{error.filename}: " if error.filename else ""
        refuse(f"{place}{error.strerror}", ExitCode.ENVIRONMENT)
    if isinstance(error, FileNotFoundError) and _current_folder_is_gone():
        refuse("the current folder has been removed; go to another one (cd) and try again", ExitCode.ENVIRONMENT)
    what = f"internal error: {type(error).__name__}: {error}"
    refuse(f"{what}\n`hpcpipe --debug COMMAND …` shows where; please report it with that output", ExitCode.INTERNAL)


def _current_folder_is_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - a path has no such question
    except FileNotFoundError:
        return True
    return False


def _command_index(words: Sequence[str]) -> int:
    return next((index for index, word in enumerate(words) if word in COMMANDS), len(words))


def _advice(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    if name.endswith(".toml"):
        return f"to train it: hpcpipe run {name}"
    return f"there are {', '.join(COMMANDS)}"


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from hpcpipe.version import __version__

        click.echo(f"hpcpipe {__version__}")
        ctx.exit()


EPILOG = """\b
Examples:
  hpcpipe validate jobs/quickstart.toml
  hpcpipe run jobs/quickstart.toml
  hpcpipe analyze runs/quickstart/latest
  hpcpipe COMMAND --help

\b
Completion, for bash, zsh or fish:
  eval "$(_HPCPIPE_COMPLETE=bash_source hpcpipe)"

\b
Exit codes:
  0  done                    4  a rank failed
  1  internal error          5  the training diverged
  2  wrong input             6  a hang was found
  3  the environment does    75 stopped by a signal,
     not fit                    all ranks at the same step
  130, 143  interrupted
"""


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Train models cut into pipeline stages over MPI, doing first what is ready first."""
    del debug
