"""The values of a job as written, file and overrides together, and the place where each was written.

It must not know what values are right.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpcpipe.job.faults import OVERRIDE_FILE, Fault, Path, Problem
from hpcpipe.job.overrides import Override
from hpcpipe.job.source import Source

if TYPE_CHECKING:
    from hpcpipe.job.positions import Place, Positions


class Document:
    """The merged values; later overrides win over earlier ones and over the file."""

    def __init__(self, source: Source, values: dict[str, Any], overrides: Sequence[Override]) -> None:
        self.source = source
        self.values = {name: dict(table) if isinstance(table, dict) else table for name, table in values.items()}
        self._overrides: dict[tuple[str, str], Override] = {}
        for override in overrides:
            table = self.values.setdefault(override.table, {})
            if isinstance(table, dict):
                table[override.key] = override.value
            self._overrides[override.table, override.key] = override

    def is_written(self, path: Path) -> bool:
        """Return whether the file or an override holds the key."""
        table = self.values.get(str(path[0]))
        return isinstance(table, dict) and path[1] in table

    def fault(self, problem: Problem) -> Fault:
        """Return the problem with its place."""
        path = problem.path
        key = ".".join(str(part) for part in path if isinstance(part, str))
        override = self._override(path)
        if override is not None:
            place: Place | None = _in_override(override, path)
            name, line, source = OVERRIDE_FILE, override.number, override.text
        else:
            place, name = self._positions.find(path), self.source.name
            line = place.value.line if place else 1
            if place and problem.at_key:
                line = place.key.line
            source = self.source.line(line)
        if place is None:
            return Fault(name, line, 1, key, problem.message, problem.hint, source=source)
        span = place.key if problem.at_key else place.value
        return Fault(name, line, span.column, key, problem.message, problem.hint, source=source, length=span.length)

    def _override(self, path: Path) -> Override | None:
        if len(path) > 1:
            return self._overrides.get((str(path[0]), str(path[1])))
        if path and self._positions.find(path) is None:
            return next((o for (table, _), o in self._overrides.items() if table == path[0]), None)
        return None

    @cached_property
    def _positions(self) -> "Positions":
        from hpcpipe.job.positions import Positions

        return Positions(self.source.text)


def _in_override(override: Override, path: Path) -> "Place":
    """Return where the override's key and value stand; a word without quotes is no TOML, so it is found by its `=`."""
    from hpcpipe.job.positions import Place, Positions, Span

    place = Positions(override.text).places.get(path)
    if place is not None:
        return place
    name, _, value = override.text.partition("=")
    lead = len(value) - len(value.lstrip())
    return Place(
        Span(override.number, 1 + len(name) - len(name.lstrip()), max(1, len(name.strip()))),
        Span(override.number, len(name) + 2 + lead, max(1, len(value.strip()))),
    )
