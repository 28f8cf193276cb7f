"""The terminal at the other end of stdout, also where that is the launcher's pipe."""

import os

from rich.console import Console, RenderableType

COLUMNS_VARIABLE = "HPCPIPE_TERMINAL_COLUMNS"
"""Set for the ranks by the process that starts them when its output is a terminal: rank 0 writes to it by a pipe."""

_UNLIMITED = 10_000


def terminal_columns() -> int | None:
    """Return the width of the terminal, or None if there is none."""
    if columns := os.environ.get(COLUMNS_VARIABLE):
        return int(columns)
    console = Console()
    return console.width if console.is_terminal else None


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for the terminal, or for a file of 100 columns."""
    columns = terminal_columns()
    if columns:
        return Console(force_terminal=True, width=columns, stderr=stderr)
    return Console(width=100, stderr=stderr)


def width_of(table: RenderableType, console: Console) -> int:
    """Return the columns that a table wants where it need not fold or cut anything."""
    return console.measure(table, options=console.options.update(width=_UNLIMITED)).maximum
