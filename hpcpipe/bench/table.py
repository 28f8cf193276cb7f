"""A benchmark's result as data: columns with units, rows, and what was assumed. How it is shown is not known here."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `unit` is "" for words and counts, "x" for ratios. `digits` are those after the point."""

    name: str
    unit: str = ""
    digits: int = 2


@dataclass(frozen=True, slots=True)
class BenchTable:
    """Rows under columns; the notes say what was assumed and where the figures come from."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str]

    @property
    def keys(self) -> int:
        """How many of the first columns it takes to tell all rows apart, at least 1."""
        counts = range(1, len(self.columns))
        return next((n for n in counts if len({row[:n] for row in self.rows}) == len(self.rows)), 1)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "BenchTable":
        """Return the table of a document that `to_json` made; how many digits to show is not in it."""
        columns = [Column(name, unit, 2 if unit in ("", "x") else 1) for name, unit in document["units"].items()]
        rows = [tuple(row[column.name] for column in columns) for row in document["rows"]]
        return cls(document["name"], document["title"], columns, rows, document["notes"])

    def to_json(self) -> dict[str, Any]:
        """Return the document of `bench NAME --json`."""
        names = [column.name for column in self.columns]
        return {
            "format": "hpcpipe-benchmark",
            "schema_version": "1.0.0",
            "name": self.name,
            "title": self.title,
            "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
            "units": {column.name: column.unit for column in self.columns},
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
            "notes": list(self.notes),
        }
