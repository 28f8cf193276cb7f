"""Find the file that `[data].path` names: beside the job file, absolute, or inside an installed package.

Packages are looked up, never imported, so a data file does not start whatever its package starts.
"""

import os
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "package:"


class NoSuchPackageError(LookupError):
    """The package of a `package:` path is not installed, or the path is not of that form."""


def expanded(text: str) -> Path:
    """Return a path with its `~` resolved, or as it stands where this machine knows no such user, nor our home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises then


def resolve(text: str, *, folder: Path) -> Path:
    """Return the absolute path of the data file, which need not exist.

    Raises
    ------
    NoSuchPackageError
        The text starts with `package:` and names no installed package.
    """
    if not text.startswith(PACKAGE):
        return (folder / expanded(text)).absolute()
    package, _, inside = text.removeprefix(PACKAGE).partition("/")
    if not package.isidentifier() or not inside or ".." in Path(inside).parts or inside.startswith("/"):
        raise NoSuchPackageError(
            f'{text!r} does not have the form "package:PKG/FILE" with a top-level package and a path inside it'
        )
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise NoSuchPackageError(f"no package named {package} is installed in this Python")
    folders = [Path(location) for location in spec.submodule_search_locations or ()]
    if not folders:
        raise NoSuchPackageError(f"{package} is a single module, not a package with files")
    if spec.origin:  # the folders of an editable install need not exist; its source does
        folders.append(Path(spec.origin).parent)
    candidates = [location / inside for location in folders]
    return next((c for c in candidates if c.exists()), candidates[0]).absolute()
