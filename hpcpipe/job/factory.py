"""The function that `kind = "module:function"` names: how it is written, and how it is imported when a run starts.

Checking a job file never imports it; that would run code of the user's, and load whatever it loads.
"""

import re
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from hpcpipe.job.values import wrong
from hpcpipe.job.words import show, type_of

OWN = "module:function"
"""Stands for all kinds that are a function of the user's own."""

_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class UserCodeError(ValueError):
    """A function of the user's own cannot be had, fails, or returns what cannot be used; the text says what to do."""


def _name(value: str) -> str:
    if not _FORM.fullmatch(value):
        raise wrong(
            f"= {show(value)} does not have the form {show(OWN)}",
            'name a module that can be imported and a function in it, such as "my_model:model"',
        )
    return value


FactoryName = Annotated[str, AfterValidator(_name)]


def variant_of(kind: str) -> str:
    """Return the kind, or OWN where it names a function."""
    return OWN if ":" in kind else kind


def is_there(kind: str, folder: Path) -> bool:
    """Return whether the module of a kind may exist: in the folder, or where Python finds its package. Imports none."""
    module = kind.partition(":")[0]
    inside = folder.joinpath(*module.split("."))
    if inside.with_suffix(".py").is_file() or inside.is_dir():
        return True
    try:
        return find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def call_factory(table: str, kind: str, options: Mapping[str, Any], *, folder: Path) -> Any:
    """Import the function and return what it returns for the options.

    Raises
    ------
    UserCodeError
        It cannot be imported, or it raises.
    """
    function = import_factory(table, kind, folder=folder)
    with_options = f" with options {', '.join(options)}" if options else ""
    try:
        return function(**options)
    except Exception as error:
        raise UserCodeError(
            f"[{table}] kind = {show(kind)}: calling the function{with_options} failed: {explain(error)}"
        ) from error


def import_factory(table: str, kind: str, *, folder: Path) -> Callable[..., Any]:
    """Return the function; `folder` is first on the import path from now on.

    Raises
    ------
    UserCodeError
        The module cannot be imported or has no such function.
    """
    module, _, attributes = kind.partition(":")
    where = f"[{table}] kind = {show(kind)}"
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(error.name + ".")):
            raise UserCodeError(
                f"{where}: no module named {error.name} was found in {folder} (import_from, or the job file's folder) "
                "or elsewhere on Python's path; put it there, install it, or set PYTHONPATH"
            ) from error
        raise UserCodeError(f"{where}: importing {module} failed: {explain(error)}") from error
    except Exception as error:
        raise UserCodeError(f"{where}: importing {module} failed: {explain(error)}") from error
    for name in attributes.split("."):
        if not hasattr(found, name):
            known = [key for key, value in vars(found).items() if callable(value) and not key.startswith("_")]
            raise UserCodeError(
                f"{where}: {getattr(found, '__file__', module)} has no {name}; it has {', '.join(known) or 'none'}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise UserCodeError(f"{where}: {attributes} is {type_of(found)}, not a function")
    function: Callable[..., Any] = found
    return function


def explain(error: BaseException) -> str:
    """Return an error of the user's code in one line, with the innermost line of a file of theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    ours = str(Path(__file__).parents[1])
    theirs = [f for f in outside if not f.filename.startswith(ours)]
    at = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {error}{at}"
