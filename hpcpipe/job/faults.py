"""What is wrong with a job, each fault with its place and the way out; a job's faults are raised together.

It must not know how faults are found or printed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Path = tuple[str | int, ...]
"""The way to a value: table, key, and the index inside a list."""

OVERRIDE_FILE = "--set"
"""Stands for the file's name in faults of command-line overrides; the line is then the number of the `--set`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a job file or of an override.

    Line and column count from 1; both are 0 where the file as a whole is meant (it is missing, say).
    `source` and `length` are the text of that line and how much of it is meant, for printing.
    """

    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str
    source: str = field(default="", compare=False)
    length: int = field(default=1, compare=False)

    def to_json(self) -> dict[str, str | int]:
        """Return the keys that `validate --json` promises."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key": self.key,
            "message": self.message,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{place}: {self.message}" + (f" ({self.hint})" if self.hint else "")


def of_option(fault: Fault, options: Sequence[str], *, after: int) -> Fault:
    """Return the fault of a setting that an option stands for as one of that option, which the user has typed.

    `options` are those of the settings after the first `after`; other faults stay as they are.
    """
    if fault.file != OVERRIDE_FILE or fault.line <= after:
        return fault
    return replace(fault, file=options[fault.line - after - 1], line=0, column=0)


class Problem(NamedTuple):
    """A fault that knows its key but not yet its place in the text."""

    path: Path
    message: str
    hint: str
    at_key: bool = False


class JobError(ValueError):
    """The job is wrong; `faults` holds every fault, sorted by place."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(
            sorted(faults, key=lambda f: (f.file == OVERRIDE_FILE, f.file, f.line, f.column, f.message))
        )
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[type["JobError"], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)
