"""A copy of a job file with a grouping in it, everything else as it was written: comments, order, spelling.

It changes text and writes files; whether the job is right is for the loader to say.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import AbstractTable

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.job.overrides import Override

_TIMES = ("forward_ms", "backward_ms", "weight_ms", "message_bytes")


def with_job(text: str, job: Job, *, overrides: Iterable[Override] = ()) -> str:
    """Return a job file's text with what `with_grouping` changed in the job, and with what overrides said."""
    document = tomlkit.parse(text)
    for override in overrides:
        _set(document, override.table, override.key, override.value)
    schedule, batch = job.schedule, job.batch
    _set(document, "schedule", "hint", schedule.hint)
    _set(document, "schedule", "k", schedule.k)
    for key in ("in_flight", "stash"):
        value = getattr(schedule, key)
        if value != "equal-memory" or key in document.get("schedule", {}):
            _set(document, "schedule", key, list(value) if isinstance(value, tuple) else value)
    size = document.get("batch", {}).get("microbatch_size", 1)
    _set(document, "batch", "microbatches", batch.microbatches)
    _set(document, "batch", "microbatch_size", batch.microbatch_size)
    if isinstance(job.device, Emulated) and size != batch.microbatch_size:
        for key in _TIMES:
            value = getattr(job.device, key)
            if key in document["device"] or value != Emulated.model_fields[key].default:
                _set(document, "device", key, list(value) if isinstance(value, tuple) else value)
    return tomlkit.dumps(document)


def _set(document: tomlkit.TOMLDocument, table: str, key: str, value: Any) -> None:
    if table not in document:
        document[table] = tomlkit.table()
    inside = document[table]
    assert isinstance(inside, AbstractTable), "a job that was loaded has tables"
    if key in inside and inside[key] == value:
        return
    comment = inside[key].trivia if key in inside else None
    inside[key] = value
    if comment is not None:
        inside[key].trivia.comment_ws, inside[key].trivia.comment = comment.comment_ws, comment.comment


def write_beside(path: Path, text: str, *, replace: bool) -> None:
    """Write a file as a whole or not at all: beside its name, synced, then under it.

    Raises
    ------
    FileExistsError
        It is there and is not to be replaced.
    OSError
        It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(path)
        else:
            os.link(partial, path)  # never over one that came meanwhile
    finally:
        with suppress(OSError):
            partial.unlink()
