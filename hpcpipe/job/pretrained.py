"""Complete the table `[model]` of a language model: from the folder that `init` names, and from other keys.

What the table says and what the folder says must agree; the weights' names and shapes are checked before anything runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from hpcpipe.job.datafile import NoSuchPackageError, resolve
from hpcpipe.job.faults import Problem
from hpcpipe.job.huggingface import FolderError, open_weights, read_config, settings_of
from hpcpipe.job.models import MODELS, LanguageModel, Llama
from hpcpipe.job.section import Section
from hpcpipe.job.words import show

_INIT = ("model", "init")
_OTHER_FOLDER = (
    "name a folder as transformers' save_pretrained writes it, or leave init out to begin with random weights"
)
_OTHER_FILES = (
    "the files must hold what config.json describes: fetch them again, or save the model again as safetensors"
)


class Settled(NamedTuple):
    """The table with what was added, what is wrong, and what the folder says (nothing without one)."""

    values: dict[str, Any]
    problems: list[Problem]
    found: Mapping[str, Any]


def settle(values: Mapping[str, Any], folder: Path) -> Settled:
    """Fill in keys of `[model]` that are left out; `folder` is where relative paths start."""
    problems: list[Problem] = []
    found: Mapping[str, Any] = {}
    init, kind = values.get("init"), values.get("kind")
    starts = isinstance(init, str) and bool(init.strip()) and "\0" not in init
    if starts and (kind is None or _has_weights(kind)):
        try:
            found = settings_of(read_config(resolve(str(init), folder=folder)))
        except FolderError as error:
            problems = [Problem(_INIT, fault, _OTHER_FOLDER) for fault in error.faults]
        except NoSuchPackageError as error:
            problems = [Problem(_INIT, str(error), _OTHER_FOLDER)]
        if found and kind not in (None, found["kind"]):
            said = f"kind = {show(kind)}, but {init} holds a model of kind {show(found['kind'])}"
            problems, found = [Problem(("model", "kind"), said, f"write kind = {show(found['kind'])}")], {}
    filled = {**found, **values}
    if _section(filled.get("kind")) is Llama:
        heads, dim = filled.get("heads"), filled.get("dim")
        if _is_count(heads):
            filled.setdefault("kv_heads", heads)
            if _is_count(dim):
                filled.setdefault("head_dim", max(1, dim // heads))
    return Settled(filled, problems, found)


def disagreements(model: LanguageModel, written: Mapping[str, Any], found: Mapping[str, Any]) -> list[Problem]:
    """Return the written keys that the folder contradicts."""
    theirs = type(model).model_validate({**model.model_dump(), **found})
    problems = []
    for key in found:
        if key in written and getattr(model, key) != getattr(theirs, key):
            said = f"{key} = {show(written[key])}, but the model in {model.init} has {show(found[key])}"
            hint = f"leave {key} out, or write {key} = {show(found[key])}"
            hint += "; [data] seq_len makes sequences shorter" if key == "context" else ""
            problems.append(Problem(("model", key), said, hint))
    return problems


def weight_problems(model: LanguageModel) -> list[Problem]:
    """Return what is wrong with the tensors in the folder that a model starts from."""
    if model.init_folder is None:
        return []
    try:
        open_weights(model.init_folder, model)
    except FolderError as error:
        return [Problem(_INIT, fault, _OTHER_FILES) for fault in error.faults]
    return []


def _section(kind: object) -> type[Section] | None:
    return MODELS.get(kind) if isinstance(kind, str) else None


def _has_weights(kind: object) -> bool:
    section = _section(kind)
    return section is not None and issubclass(section, LanguageModel)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
