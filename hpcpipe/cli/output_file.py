"""Options that name a file to write: refused before any work is done where it cannot be written."""

from collections.abc import Sequence
from pathlib import Path

import click

PICTURE = (".png", ".svg")


class OutputFile(click.Path):
    """A file to write: no folder itself, in a folder that is there, with one of the suffixes, if some are given."""

    def __init__(self, suffixes: Sequence[str] = ()) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self._suffixes = suffixes

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            known = " or ".join(self._suffixes)
            self.fail(f"{path}: cannot draw a {path.suffix or 'file without suffix'}; use {known}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path}: cannot be written: there is no folder {path.parent}; make it first", param, ctx)
        return path


class NamedPicture(click.ParamType):
    """`NAME:FILE`, or `FILE` alone; stays text, which says which picture is drawn where."""

    name = "[NAME:]FILE"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, once its name is known and its file can be written."""
        from hpcpipe.analyze.pictures import PICTURES, split_name

        picture, path = split_name(value)
        first, colon, _ = value.partition(":")
        if colon and first not in PICTURES and "/" not in first:
            self.fail(
                f"{value}: there is no picture {first}; there are {', '.join(PICTURES)}",
                param,
                ctx,
            )
        OutputFile(PICTURE).convert(path, param, ctx)
        return f"{picture}:{path}"
