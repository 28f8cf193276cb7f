"""Writes a file beside its name and puts it in place when it is whole, so nobody reads half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the path to write to; it takes the place of `path` if nothing goes wrong, and is removed if something does.

    Raises
    ------
    OSError
        It cannot be written; the error names `path`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
