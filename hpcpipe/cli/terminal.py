"""The terminal at the other end of stdout or stderr: its width, and how sentences, tables and progress fit it.

It must not know what is said, and loads rich only for what needs it. A run's rank 0 writes to the launcher's pipe and
is told of the terminal behind it.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from textwrap import fill
from typing import IO, TYPE_CHECKING, Any, NoReturn, TextIO, cast

from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Column, Table

COLUMNS_VARIABLE = "HPCPIPE_TERMINAL_COLUMNS"
"""Set for the ranks by the process that starts them when its output is a terminal: rank 0 writes to it by a pipe."""

fill_words = partial(fill, break_long_words=False, break_on_hyphens=False)
"""textwrap's, with a path or an option in one piece, also where it is longer than a line."""

_UNLIMITED = 10_000
_FILE_COLUMNS = 100
_FILLING = re.compile(r" +(?=\n)")


def terminal_columns() -> int | None:
    """Return the width of the terminal, or None if there is none."""
    console = make_console()
    return console.width if console.is_terminal else None


def _told_columns() -> int | None:
    columns = os.environ.get(COLUMNS_VARIABLE, "")
    return int(columns) or None if columns.isdecimal() else None


def make_console(*, stderr: bool = False, highlight: bool = True, soft_wrap: bool = False) -> "Console":
    """Return a console for the terminal of a stream, or for a file of 100 columns.

    With `soft_wrap` sentences are not folded in a file.
    """
    from rich.console import Console

    if columns := _told_columns():
        return Console(force_terminal=True, width=columns, stderr=stderr, highlight=highlight)
    console = Console(stderr=stderr, highlight=highlight)
    return console if console.is_terminal else file_console(console.file, highlight=highlight, soft_wrap=soft_wrap)


def file_console(file: IO[str], *, highlight: bool = True, soft_wrap: bool = False) -> "Console":
    """Return a console for a file, whose lines end with their last sign."""
    from rich.console import Console

    trimmed = cast(IO[str], _Trimmed(file))
    return Console(file=trimmed, width=_FILE_COLUMNS, highlight=highlight, soft_wrap=soft_wrap)


class _Trimmed:
    """A stream without the blanks with which rich fills lines, where it is given whole lines at a time."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_FILLING.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(text: str, *, err: bool = False) -> None:
    """Print sentences: on a terminal folded between words, paths whole; in a file a line each."""
    stream = sys.stderr if err else sys.stdout
    print(fold(text, stream), file=stream, flush=True)


def refuse(message: str, code: ExitCode = ExitCode.INPUT) -> NoReturn:
    """Say on stderr what is wrong, each line under the command's name, and end with the exit code."""
    say("\n".join(f"hpcpipe: {line}" for line in message.splitlines()), err=True)
    sys.exit(code)


def fold(text: str, stream: TextIO) -> str:
    """Return text whose lines fit the terminal of a stream; for a file it stays as it is."""
    columns = _columns_of(stream)
    return text if columns is None else "\n".join(fill_words(line, columns) for line in text.split("\n"))


def _columns_of(stream: TextIO) -> int | None:
    if columns := _told_columns():
        return columns
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream.isatty() else None
    except (AttributeError, OSError, ValueError):  # closed, or none at all
        return None


def suggest(what: str, *words: object, overrides: Sequence[str] = (), err: bool = False) -> None:
    """Print what can be done next: `what: hpcpipe …`, the command quoted and never folded, so it can be copied.

    Where both have no room on a line of the terminal the command has its own. Of overrides of one key the last counts.
    """
    last = {override.partition("=")[0].strip(): override for override in overrides}
    settings = (word for override in last.values() for word in ("--set", override))
    command = shlex.join(["hpcpipe", *map(str, words), *settings])
    stream = sys.stderr if err else sys.stdout
    columns = _columns_of(stream)
    if columns is not None and len(what) + 2 + len(command) > columns:
        say(f"{what}:", err=err)
        print(f"  {command}", file=stream, flush=True)
    else:
        print(f"{what}: {command}", file=stream, flush=True)


@contextmanager
def working(words: str) -> Iterator[Callable[[str], object]]:
    """Show on a terminal what is being done as long as it lasts; yield what is told of the next piece of it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with make_console(stderr=True).status(words) as status:
        yield status.update


def print_notes(console: "Console", notes: Sequence[str], *, style: str = "dim") -> None:
    """Print a list of sentences, further lines below the words of the first."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1, 0, 0))
    for note in notes:
        grid.add_row(Text("-", style=style), Text(note, style=style))
    console.print(grid)


def width_of(table: "RenderableType", console: "Console") -> int:
    """Return the columns that a table wants where it need not fold or cut anything."""
    return console.measure(table, options=console.options.update(width=_UNLIMITED)).maximum


def fullest(build: "Callable[[int], Table]", most: int, console: "Console") -> "Table":
    """Return `build(n)` for the largest n up to `most` that has room, and at least 1."""
    for number in range(most, 1, -1):
        table = build(number)
        if width_of(table, console) <= console.width:
            return table
    return build(1)


def print_table(console: "Console", table: "Table", *, keys: int = 1) -> None:
    """Print a table with every cell whole.

    Where it is wider than the terminal its headings are folded between words; where that is not enough it is printed
    in pieces, each with the first `keys` columns. A file has room for any table.
    """
    from rich.cells import cell_len

    if not console.is_terminal:
        usual = console.width
        console.width = max(usual, width_of(table, console))
        console.print(table)
        console.width = usual
        return
    if width_of(table, console) > console.width:
        for column in table.columns:
            heading = str(column.header)
            words = [*heading.split(), *(line for cell in column.cells for line in str(cell).splitlines())]
            column.header = fill_words(heading, max(map(cell_len, words), default=1))
            column.no_wrap = True
    for piece in _pieces(table, console, keys):
        console.print(piece)


def _pieces(table: "Table", console: "Console", keys: int) -> "Iterator[Table]":
    chosen = table.columns[:keys]
    for column in table.columns[keys:]:
        if len(chosen) > keys and width_of(_with(table, [*chosen, column]), console) > console.width:
            yield _with(table, chosen)
            chosen = table.columns[:keys]
        chosen = [*chosen, column]
    yield _with(table, chosen)


def _with(table: "Table", columns: "Sequence[Column]") -> "Table":
    """Return the table with some of its columns."""
    piece = copy(table)
    piece.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
    return piece
