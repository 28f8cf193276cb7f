"""Print a job's faults as compilers do: message, place, the line with what is meant underlined, and the way out.

It must not know what can be wrong.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from hpcpipe.cli.terminal import fill_words, make_console

if TYPE_CHECKING:
    from rich.console import Console

    from hpcpipe.job import Fault

ELLIPSIS = "…"
TAB = "    "


def print_faults(faults: "Sequence[Fault]", console: "Console | None" = None) -> None:
    """Print the faults and their number to stderr."""
    console = console or make_console(stderr=True, highlight=False, soft_wrap=True)
    width = max(console.width if console.is_terminal else 100, 40)
    for fault in faults:
        _print(fault, console, width)
        console.print()
    number = len(faults)
    console.print(Text(f"{number} {'fault' if number == 1 else 'faults'} found; nothing was started", style="bold"))


def print_warnings(warnings: "Sequence[Fault]") -> None:
    """Print what is allowed and yet known to be slow to stderr."""
    console = make_console(stderr=True, highlight=False, soft_wrap=True)
    width = max(console.width if console.is_terminal else 100, 40)
    for warning in warnings:
        _print(warning, console, width, label=("warning", "bold yellow"))
        console.print()


def _print(fault: "Fault", console: "Console", width: int, label: tuple[str, str] = ("error", "bold red")) -> None:
    margin = " " * len(str(fault.line))
    console.print(Text.assemble(label, (_folded(fault.message, console, len(label[0]) + 2), "bold")))
    console.print(Text.assemble((f"{margin}--> ", "bold blue"), _place(fault)))
    if fault.line:
        before, marked, after = _window(fault, width - len(margin) - 3)
        marker = " " * cell_len(before) + "^" * max(1, cell_len(marked))
        console.print(Text(f"{margin} |", style="bold blue"))
        console.print(Text.assemble((f"{fault.line} | ", "bold blue"), before, (marked, "bold"), after), no_wrap=True)
        console.print(Text.assemble((f"{margin} | ", "bold blue"), (marker, "bold red")), no_wrap=True)
    if fault.hint:
        words = _folded(fault.hint, console, len(margin) + 9)
        console.print(Text.assemble((f"{margin} = ", "bold blue"), ("help", "bold cyan"), words))


def _folded(text: str, console: "Console", column: int) -> str:
    """Return `: text`, which begins its words at a column and goes on there on further lines of a terminal."""
    text = _visible(text)
    if not console.is_terminal:
        return f": {text}"
    indent = " " * column
    lines = fill_words(text, console.width, initial_indent=indent, subsequent_indent=indent)
    return f": {lines[column:]}"


def _place(fault: "Fault") -> str:
    from hpcpipe.job.faults import OVERRIDE_FILE

    if fault.file == OVERRIDE_FILE:
        return f"the {_ordinal(fault.line)} --set, column {fault.column}"
    return f"{fault.file}:{fault.line}:{fault.column}" if fault.line else fault.file


def _window(fault: "Fault", width: int) -> tuple[str, str, str]:
    """Return the line before, at and after what is meant, cut to the width around it."""
    start = fault.column - 1
    end = start + fault.length
    before, marked, after = map(_visible, (fault.source[:start], fault.source[start:end], fault.source[end:]))
    if cell_len(marked) > width // 2:
        marked, after = _cut(marked, width // 2) + ELLIPSIS, ""
    room = width - cell_len(marked) - 1
    if cell_len(before) > room * 2 // 3:
        before = ELLIPSIS + _cut(before[::-1], room * 2 // 3 - 1)[::-1]
    room -= cell_len(before)
    if cell_len(after) > room:
        after = _cut(after, max(room - 1, 0)) + ELLIPSIS
    return before, marked, after


def _cut(text: str, cells: int) -> str:
    while cell_len(text) > cells:
        text = text[:-1]
    return text


def _visible(text: str) -> str:
    """Return the text with tabs as spaces and without characters that would drive the terminal."""
    return "".join(TAB if c == "\t" else c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"
