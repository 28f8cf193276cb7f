"""The kinds of values that a job file holds beyond plain numbers and words: sizes, lists, and settings of mixed type.

A setting that may be a word, a number or a list has one validator here, so that a wrong one yields one clear fault.
"""

import re
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from hpcpipe.job.datafile import expanded
from hpcpipe.job.words import describe, listing, nearest, show
from hpcpipe.plan import ORDERS, RULES
from hpcpipe.plan.schedule import FROM_FILE
from hpcpipe.plan.sizes import SIZE

LARGEST = 2**31 - 1  # step and micro-batch are 32-bit columns of the event log
MOST_MS = 1e9
MOST_MB = 1e9
MULTIPLE = re.compile(r"[0-9]+(\.[0-9]+)?x")

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


def wrong(message: str, hint: str, *index: int) -> PydanticCustomError:
    """Return an error whose words reach the user as they are; `index` points into a list."""
    return PydanticCustomError("job_value", "{message}", {"message": message, "hint": hint, "index": index})


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _counts(value: list[Any] | tuple[Any, ...], *, what: str, example: str) -> tuple[int, ...]:
    if not value:
        raise wrong(f"must list {what}, got an empty list", f"for example {example}")
    for index, entry in enumerate(value):
        if not _is_int(entry) or not 1 <= entry <= LARGEST:
            raise wrong(
                f"must be a whole number of at least 1, got {describe(entry)}",
                f"the list holds {what}; for example {example}",
                index,
            )
    return tuple(value)


def _cap(value: Any) -> str | int | tuple[int, ...]:
    known = (
        '"equal-memory", "1f1b", a multiple of 1f1b such as "2x", a number, a list with one number per stage, or '
        'memory such as "2 GiB"'
    )
    if isinstance(value, list | tuple):
        return _counts(value, what="the cap of each stage", example="[4, 3, 2, 1]")
    if _is_int(value):
        if not 1 <= value <= LARGEST:
            raise wrong(
                f"must be at least 1, got {show(value)}", "with a cap of 0 no forward could ever start; 1 is the least"
            )
        return int(value)
    if isinstance(value, str):
        if value in ("equal-memory", "1f1b"):
            return value
        if MULTIPLE.fullmatch(value):
            if float(value[:-1]) == 0 or not isfinite(float(value[:-1])):
                raise wrong(f"must be a multiple above 0, got {show(value)}", 'for example "1.5x"')
            return value
        if SIZE.fullmatch(value):
            return value
        if value.isdecimal():
            raise wrong(f"must be a number without quotes, got {describe(value)}", f"write {int(value)}")
    raise wrong(f"must be one of the known caps, got {describe(value)}", f"known are {known}")


def auto_or_count(name: str, example: int) -> PlainValidator:
    """Return a validator of "auto" or a whole number of at least 1."""

    def validate(value: Any) -> str | int:
        if value == "auto":
            return "auto"
        if _is_int(value) and 1 <= value <= LARGEST:
            return int(value)
        if isinstance(value, str) and value.isdecimal():
            raise wrong(f"must be a number without quotes, got {describe(value)}", f"write {name} = {int(value)}")
        raise wrong(
            f'must be "auto" or a whole number of at least 1, got {describe(value)}',
            f'for example {name} = "auto" or {name} = {example}',
        )

    return PlainValidator(validate)


def _hint(value: Any) -> str:
    known = listing([*(show(name) for name in (*ORDERS, *RULES)), '"file:PATH"'], "or")
    if not isinstance(value, str):
        raise wrong(f"must be {known}, got {describe(value)}", 'for example hint = "critical"')
    if value in ORDERS or value in RULES:
        return value
    if value.startswith(FROM_FILE):
        if not value.removeprefix(FROM_FILE).strip() or "\0" in value:
            raise wrong("names no file", 'write its path after the colon: hint = "file:order.csv"')
        return value
    near = nearest(value, [*ORDERS, *RULES])
    meant = f"did you mean {show(near)}? " if near else ""
    raise wrong(f"= {show(value)} is not known", f"{meant}it must be {known}")


def _milliseconds(value: Any) -> float | tuple[float, ...]:
    def is_time(entry: object) -> bool:
        return isinstance(entry, int | float) and not isinstance(entry, bool) and 0 <= entry < MOST_MS

    entries = _of_stages(value, is_time, "a number from 0 on", what="time", example="5.0 or [5.0, 6.0]")
    return tuple(map(float, entries)) if isinstance(value, list | tuple) else float(value)


def _sizes(value: Any) -> int | tuple[int, ...]:
    def is_size(entry: Any) -> bool:
        return _is_int(entry) and 0 <= entry <= LARGEST

    wanted = f"a whole number from 0 to {LARGEST}"
    entries = _of_stages(value, is_size, wanted, what="bytes", example="65536 or [65536, 16384]")
    return tuple(entries) if isinstance(value, list | tuple) else int(value)


def _of_stages(
    value: Any, is_good: Callable[[Any], bool], wanted: str, *, what: str, example: str
) -> list[Any] | tuple[Any, ...]:
    """Return the entries of a list with one a stage, or one for all."""
    listed = isinstance(value, list | tuple)
    entries: list[Any] | tuple[Any, ...] = value if listed else [value]
    if not entries:
        raise wrong(f"must list the {what} of each stage, got an empty list", f"for example {example}")
    for index, entry in enumerate(entries):
        if not is_good(entry):
            where = (index,) if listed else ()
            raise wrong(f"must be {wanted}, got {describe(entry)}", f"for example {example}", *where)
    return entries


def _megabytes(value: Any) -> str | float:
    if value == "auto":
        return "auto"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_MB:
        return float(value)
    raise wrong(
        f'must be "auto" or a number above 0 and at most {MOST_MB:g}, got {describe(value)}',
        "for example 4.0: buckets of 4 MB (10^6 bytes)",
    )


def _tried(value: Any) -> str | bool:
    if value == "auto":
        return "auto"
    if isinstance(value, bool):
        return value
    if value in ("true", "false", "on", "off"):
        meant = "true" if value in ("true", "on") else "false"
        raise wrong(f"must be true or false without quotes, got {describe(value)}", f"write {meant}")
    raise wrong(f'must be "auto", true or false, got {describe(value)}', '"auto" tries it out when the run starts')


def _split(value: Any) -> str | tuple[int, ...]:
    if value == "auto":
        return "auto"
    if isinstance(value, list | tuple):
        return _counts(value, what="the layers of each stage", example="split = [2, 2]")
    raise wrong(
        f'must be "auto" or a list with the layers of each stage, got {describe(value)}',
        'for example split = "auto" or split = [2, 2]',
    )


def _recompute(value: Any) -> str | tuple[tuple[int, int], ...]:
    example = "for example recompute = [[0, 3], [6, 6]]: blocks 0 to 3, and block 6 by itself"
    if value in ("none", "all"):
        return str(value)
    if not isinstance(value, list | tuple):
        raise wrong(f'must be "none", "all" or a list of ranges of blocks, got {describe(value)}', example)
    if not value:
        raise wrong("must list ranges of blocks, got an empty list", 'write recompute = "none"')
    ranges: list[tuple[int, int]] = []
    for index, entry in enumerate(value):
        if not isinstance(entry, list | tuple) or len(entry) != 2 or not all(map(_is_int, entry)):
            raise wrong(
                f"must be a range of blocks, [first, last], got {describe(entry)}",
                example,
                index,
            )
        first, last = entry
        if not 0 <= first <= last <= LARGEST:
            raise wrong(f"= [{first}, {last}] is no range: 0 <= first <= last must hold", example, index)
        if ranges and first <= ranges[-1][1]:
            before = list(ranges[-1])
            raise wrong(f"= [{first}, {last}] begins before {before} ends", "list the ranges in order", index)
        ranges.append((first, last))
    return tuple(ranges)


def _betas(value: Any) -> tuple[float, float]:
    example = "for example betas = [0.9, 0.95]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        got = f"a list of {len(value)}" if isinstance(value, list | tuple) else describe(value)
        raise wrong(f"must be a list of two numbers, got {got}", example)
    for index, entry in enumerate(value):
        if isinstance(entry, bool) or not isinstance(entry, int | float) or not 0 <= entry < 1:
            raise wrong(f"must be a number from 0 to below 1, got {describe(entry)}", example, index)
    return float(value[0]), float(value[1])


def folder_name(value: str) -> str:
    """Refuse what cannot be the name of a folder."""
    if (
        not value
        or value in (".", "..")
        or "/" in value
        or any(not c.isprintable() for c in value)
        or len(value.encode()) > 200
    ):
        raise wrong(
            f"must be usable as the name of a folder, got {show(value)}",
            'no "/", no control characters, at most 200 bytes; for example name = "quickstart"',
        )
    return value


def text(value: Any) -> Any:
    """Refuse text that no file can have as its name."""
    if isinstance(value, str) and (not value.strip() or "\0" in value):
        raise wrong(f"must name a file or folder, got {show(value)}", "write its path in quotes")
    return value


def to_path(value: Any) -> Any:
    """Turn text into a path, `~` included; anything else is left to the type check."""
    checked = text(value)
    return expanded(checked) if isinstance(checked, str) else checked


Cap = Annotated[str | int | tuple[int, ...], PlainValidator(_cap)]
Chunks = Annotated[str | int, auto_or_count("chunks", 2)]
HintName = Annotated[str, PlainValidator(_hint)]
Megabytes = Annotated[str | float, PlainValidator(_megabytes)]
Milliseconds = Annotated[float | tuple[float, ...], PlainValidator(_milliseconds)]
Recompute = Annotated[str | tuple[tuple[int, int], ...], PlainValidator(_recompute)]
Sizes = Annotated[int | tuple[int, ...], PlainValidator(_sizes)]
Slots = Annotated[str | int, auto_or_count("slots", 4)]
Split = Annotated[str | tuple[int, ...], PlainValidator(_split)]
Tried = Annotated[str | bool, PlainValidator(_tried)]
Betas = Annotated[tuple[float, float], PlainValidator(_betas)]
