"""What files and folders that a job names must satisfy, as far as a look at their size and head can tell.

No token is read here, nothing of the user's is imported, and no library but the standard one is needed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcpipe.job.datafile import PACKAGE, NoSuchPackageError
from hpcpipe.job.datasets import DataFile, ImageText, OwnData, Samples, Stored, Text, Tokenized
from hpcpipe.job.factory import is_there
from hpcpipe.job.faults import Problem
from hpcpipe.job.models import OwnModel, Vlm
from hpcpipe.job.rules import Rules, count
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

CHECKS = Rules()
BYTE_VALUES = 256
RELATIVE = "a relative path starts at the job file's folder"


@CHECKS.needs("data.path")
def _the_data_can_be_read(job: Job, _: int | None) -> Iterator[Problem]:
    if isinstance(job.data, DataFile):
        yield from _readable(job.data, "path", "text file" if isinstance(job.data, Text) else "token file")


@CHECKS.needs("data.eval_path")
def _the_data_for_evaluation_can_be_read(job: Job, _: int | None) -> Iterator[Problem]:
    if isinstance(job.data, DataFile) and job.data.eval_path:
        yield from _readable(job.data, "eval_path", "text file" if isinstance(job.data, Text) else "token file")


@CHECKS.needs("data.path", "data.seq_len", "data.tokenizer")
def _the_data_holds_a_sequence(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, Text)
    if job.data.tokenizer:
        return  # how many tokens it has is known when it has been read
    try:
        path = job.data.resolved_path
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, NoSuchPackageError):
        return
    wanted = job.data.seq_len + 1
    if 0 < size < wanted:
        yield Problem(
            ("data", "path"),
            f"{path} holds {count(size, 'token')}, but one sequence needs seq_len + 1 = {wanted}",
            f"name a longer file, or set seq_len to at most {size - 1}" if size > 1 else "name a longer file",
        )


@CHECKS.needs("data.tokenizer")
def _the_tokenizer_can_be_read(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, Tokenized)
    if not job.data.tokenizer:
        return
    problems = list(_readable(job.data, "tokenizer", "tokenizer.json"))
    yield from problems
    if not problems and _vocabulary(job.data.resolve(job.data.tokenizer)) is None:
        yield Problem(
            ("data", "tokenizer"),
            f"{job.data.tokenizer} is no tokenizer of the tokenizers library",
            'name a tokenizer.json, as transformers\' "fast" tokenizers save it',
        )


@CHECKS.needs("data.tokenizer", "model.vocab_size")
def _every_token_is_in_the_vocabulary(job: Job, _: int | None) -> Iterator[Problem]:
    data, records = job.data, isinstance(job.data, ImageText)
    assert isinstance(data, Tokenized)
    if records != isinstance(job.model, Vlm):
        return  # that they do not go together is another rule's
    size: int = getattr(job.model, "vocab_size")  # noqa: B009 - of whichever kind of model has one
    known, what, way = BYTE_VALUES, f"the tokens of a text are {BYTE_VALUES} bytes", " or leave it out"
    if data.tokenizer:
        try:
            found = _vocabulary(data.resolve(data.tokenizer))
        except (OSError, NoSuchPackageError):
            return
        if found is None:
            return
        known, what = found, f"the ids of {data.tokenizer} go up to {found - 1}"
        way = ", or a larger one that divides well"
    if records:
        what, known = f"{what}, and a record has a begin and an end", known + 2
    if size < known:
        yield Problem(
            ("model", "vocab_size"), f"vocab_size = {size} is too small: {what}", f"set vocab_size = {known}{way}"
        )


@CHECKS.needs("data.eval_every", "data.eval_fraction", "data.eval_samples", "data.eval_microbatch_size")
def _what_is_set_for_evaluation_has_an_effect(job: Job, _: int | None) -> Iterator[Problem]:
    data = job.data
    assert isinstance(data, Samples)
    if isinstance(data, Stored) and data.eval_path and data.eval_fraction:
        yield Problem(
            ("data", "eval_fraction"),
            f"eval_fraction = {show(data.eval_fraction)} and eval_path are both set",
            "hold a part of path out, or name another file; not both",
        )
    if data.evaluates:
        return
    for key in ("eval_every", "eval_samples", "eval_microbatch_size"):
        if getattr(data, key):
            what = "eval_fraction or eval_path" if isinstance(data, Stored) else "eval_fraction"
            yield Problem(
                ("data", key),
                f"{key} = {getattr(data, key)} has no effect: nothing is held out for evaluation",
                f"set {what}, or remove {key}",
            )


@CHECKS.needs("model.kind", "model.import_from")
def _the_module_of_an_own_model_is_there(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, OwnModel)
    yield from _importable("model", job.model.kind, job.model.folder)


@CHECKS.needs("data.kind", "data.import_from")
def _the_module_of_own_data_is_there(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, OwnData)
    yield from _importable("data", job.data.kind, job.data.folder)


def _importable(table: str, kind: str, folder: Path) -> Iterator[Problem]:
    if not is_there(kind, folder):
        module = kind.partition(":")[0]
        yield Problem(
            (table, "kind"),
            f"there is no module {module} in {folder}, and none is installed",
            f"put {module.replace('.', '/')}.py there, install its package, or name its folder with import_from",
        )


def _readable(data: Stored, key: str, what: str) -> Iterator[Problem]:
    where, text = ("data", key), str(getattr(data, key))
    try:
        path = data.resolve(text)
        if not path.exists():
            hint = "check the path" if text.startswith((PACKAGE, "/", "~")) else RELATIVE
            yield Problem(where, f"the data file {path} does not exist", hint)
        elif path.is_dir():
            yield Problem(where, f"{path} is a folder, not a data file", f"name a {what} in it")
        elif not path.is_file():
            yield Problem(where, f"{path} is not a regular file", f"name a {what}")
        else:
            with path.open("rb") as file:
                empty = not file.read(1)
            if empty:
                yield Problem(where, f"the data file {path} is empty", "name a file with text in it")
    except NoSuchPackageError as error:
        yield Problem(where, str(error), "install the package, or name a file")
    except OSError as error:
        yield Problem(where, f"{text} cannot be read: {error.strerror or error}", "check the path and its permissions")


def _vocabulary(path: Path) -> int | None:
    """Return the largest id of a tokenizer.json plus one; None if it is no such file."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        words = document["model"]["vocab"]
        ids = list(words.values()) if isinstance(words, dict) else [len(words) - 1]
        ids += [entry["id"] for entry in document.get("added_tokens") or ()]
        return int(max(ids)) + 1
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
