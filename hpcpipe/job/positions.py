"""Where every key and value of a TOML text stands, by a grammar that also reads texts with faults.

It must not know the schema; values are read elsewhere (tomllib), only places come from here.
"""

from collections.abc import Iterator
from typing import NamedTuple

import tree_sitter
import tree_sitter_toml

from hpcpipe.job.faults import Path


class Span(NamedTuple):
    """A place in the text, counted from 1 in characters, and its length on that line."""

    line: int
    column: int
    length: int


class Place(NamedTuple):
    """Where a key is written and where its value is; of a table both are the name in its header."""

    key: Span
    value: Span


class Repeat(NamedTuple):
    """A key or table that is written twice."""

    path: Path
    again: Span
    first: Span
    is_table: bool


class Positions:
    """The places of a text by the path of each value, and what is written twice."""

    def __init__(self, text: str) -> None:
        self.places: dict[Path, Place] = {}
        self.repeats: list[Repeat] = []
        self._lines = text.encode().split(b"\n")
        self._headers: set[Path] = set()
        parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_toml.language()))
        self._document(parser.parse(text.encode()).root_node)

    def find(self, path: Path) -> Place | None:
        """Return the place of the value, or of the closest table or list around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return None

    def _document(self, root: tree_sitter.Node) -> None:
        counts: dict[Path, int] = {}
        for node in root.named_children:
            if node.type == "pair":
                self._pair(node, ())
            elif node.type in ("table", "table_array_element"):
                header = next((c for c in node.named_children if c.type.endswith("key")), None)
                if header is None:
                    continue
                parts = list(_parts(header))
                path: Path = tuple(name for name, _ in parts)
                span = self._span(header)
                for length, (_, part) in enumerate(parts[:-1], 1):
                    self.places.setdefault(path[:length], Place(self._span(part), self._span(part)))
                if node.type == "table_array_element":
                    self.places.setdefault(path, Place(span, span))
                    counts[path] = counts.get(path, -1) + 1
                    path = (*path, counts[path])
                elif path in self._headers:
                    self.repeats.append(Repeat(path, span, self.places[path].key, True))
                self._headers.add(path)
                self.places.setdefault(path, Place(span, span))
                for child in node.named_children:
                    if child.type == "pair":
                        self._pair(child, path)

    def _pair(self, node: tree_sitter.Node, base: Path) -> None:
        children = node.named_children
        if len(children) < 2:
            return
        parts = list(_parts(children[0]))
        path = base
        for name, part in parts:
            path = (*path, name)
            if len(path) < len(base) + len(parts):
                self.places.setdefault(path, Place(self._span(part), self._span(part)))
        place = Place(self._span(children[0]), self._span(children[1]))
        if path in self.places:
            self.repeats.append(Repeat(path, place.key, self.places[path].key, False))
            return
        self.places[path] = place
        self._inside(children[1], path)

    def _inside(self, node: tree_sitter.Node, path: Path) -> None:
        if node.type == "inline_table":
            for child in node.named_children:
                if child.type == "pair":
                    self._pair(child, path)
        elif node.type == "array":
            for index, child in enumerate(c for c in node.named_children if c.type != "comment"):
                span = self._span(child)
                self.places[(*path, index)] = Place(span, span)
                self._inside(child, (*path, index))

    def _span(self, node: tree_sitter.Node) -> Span:
        row, start = node.start_point
        line = self._lines[row]
        end = node.end_point[1] if node.end_point[0] == row else len(line.rstrip())
        column = len(line[:start].decode(errors="replace"))
        return Span(row + 1, column + 1, max(1, len(line[start:end].decode(errors="replace"))))


def _parts(node: tree_sitter.Node) -> Iterator[tuple[str, tree_sitter.Node]]:
    """Yield the names of a bare, quoted or dotted key with their nodes."""
    if node.type == "dotted_key":
        for child in node.named_children:
            yield from _parts(child)
    elif node.type == "quoted_key":
        yield _unquoted((node.text or b"").decode()), node
    else:
        yield (node.text or b"").decode(), node


def _unquoted(text: str) -> str:
    import tomllib

    try:
        return next(iter(tomllib.loads(f"{text} = 0")))
    except tomllib.TOMLDecodeError:
        return text
