"""Options that name a file to write: refused before any work is done where it cannot be written."""

from pathlib import Path

import click


class OutputFile(click.Path):
    """A file to write, no folder itself, in a folder that is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        if not path.parent.is_dir():
            self.fail(f"{path}: cannot be written: there is no folder {path.parent}; make it first", param, ctx)
        return path


class Picture(OutputFile):
    """A picture to draw, where pictures of its kind can be drawn."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        from hpcpipe.analyze import AnalysisError
        from hpcpipe.analyze.drawing import check_picture

        path = super().convert(value, param, ctx)
        try:
            check_picture(path)
        except AnalysisError as error:
            self.fail(str(error), param, ctx)
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
            self.fail(f"{value}: there is no picture {first}; there are {', '.join(PICTURES)}", param, ctx)
        Picture().convert(path, param, ctx)
        return f"{picture}:{path}"
