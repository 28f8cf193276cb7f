"""Hands on names of a package that are imported when they are first asked for, so that importing the package is quick.

It must not import anything of hpcpipe.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names lie in the modules that `homes` says.

    A name that was found is kept in the package, so it is looked for once.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        value = getattr(import_module(homes[name]), name)
        setattr(import_module(package), name, value)
        return value

    return find
