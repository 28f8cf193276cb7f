"""The reference of the commands: the help text of each, as a terminal of 88 columns shows it."""

from collections.abc import Iterator
from os import environ

import click
from click.testing import CliRunner

from hpcpipe.cli import main

COLUMNS = 88
HEAD = """\
# Commands

What every command says with `--help`. Only `run`, `tune`, `bench` and `doctor` ever start MPI, so everything else works
on a login node.

## Completion

Names, options and files are completed by the shell:

```sh
eval "$(_HPCPIPE_COMPLETE=bash_source hpcpipe)"      # in ~/.bashrc
eval "$(_HPCPIPE_COMPLETE=zsh_source hpcpipe)"       # in ~/.zshrc
_HPCPIPE_COMPLETE=fish_source hpcpipe | source       # in ~/.config/fish/config.fish
```

On a shared file system write the script to a file once, and source that:
`_HPCPIPE_COMPLETE=bash_source hpcpipe > ~/.hpcpipe-complete.bash`.

## Colours, width, errors

Colours and progress bars appear on a terminal only, and `NO_COLOR=1` switches the colours off there too. Where a
terminal has no room for a table, its headings are folded, and what still has no room follows below. In a file, text is
100 columns wide, tables as wide as they are, and progress is a line every `[job] log_every` steps. Faults of the user
are sentences; `hpcpipe --debug COMMAND …` shows the traceback of anything unexpected. The numbers with which commands
end are in [exit codes](exit-codes.md).
"""


def page() -> str:
    """Return the page as Markdown."""
    return HEAD + "".join(_section(words, depth) for words, depth in _all(main, ()))


def _all(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    yield words, len(words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _all(below, (*words, name))


def _section(words: tuple[str, ...], depth: int) -> str:
    result = CliRunner().invoke(
        main, [*words, "--help"], prog_name="hpcpipe", env={**environ, "COLUMNS": str(COLUMNS)}, terminal_width=COLUMNS
    )
    assert result.exit_code == 0, result.output
    return f"\n{'#' * (2 + min(depth, 1))} {' '.join(('hpcpipe', *words))}\n\n```text\n{result.stdout.rstrip()}\n```\n"
