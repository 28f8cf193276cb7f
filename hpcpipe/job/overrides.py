"""`--set table.key=value`: values typed as in TOML, and plain words that a shell left without their quotes.

It must not know the schema; unknown keys are found together with those of the file.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hpcpipe.job.faults import OVERRIDE_FILE, Fault
from hpcpipe.job.source import Source

WORD = re.compile(r"\s*(?P<table>[A-Za-z0-9_-]+)\s*\.\s*(?P<key>[A-Za-z0-9_-]+)\s*=(?P<value>.*)", re.DOTALL)
NOT_A_WORD = set("\"'[]{},\n\r\0")


@dataclass(frozen=True)
class Override:
    """One `--set`, the `number`-th on the command line."""

    number: int
    text: str
    table: str
    key: str
    value: Any


def parse_overrides(texts: Iterable[str]) -> tuple[list[Override], list[Fault]]:
    """Return the overrides that can be read and the faults of the others."""
    overrides: list[Override] = []
    faults: list[Fault] = []
    for number, text in enumerate(texts, 1):
        found = _parse(number, text)
        if isinstance(found, Override):
            overrides.append(found)
        else:
            faults.append(found)
    return overrides, faults


def _parse(number: int, text: str) -> Override | Fault:
    def fault(column: int, message: str, hint: str) -> Fault:
        key = text.partition("=")[0].strip()
        return Fault(OVERRIDE_FILE, number, column, key, message, hint, source=text)

    example = "for example --set job.steps=10"
    name, equals, written = text.partition("=")
    if not equals:
        return fault(len(text) + 1, "an override needs a value", f"write table.key=value, {example}")
    if "." not in name:
        return fault(1, f"the override {name.strip() or text!r} names no table", f"write table.key=value, {example}")
    if name.count(".") > 1 and not set("\"'") & set(name):
        return fault(1, f"{name.strip()} has more than two parts", f"write table.key=value, {example}")
    if not written.strip():
        return fault(
            len(text) + 1, f"{name.strip()} is given no value", f'write a value, or "" for an empty text; {example}'
        )
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError):
        word = WORD.fullmatch(text)
        if word and not NOT_A_WORD & set(word["value"]):
            return Override(number, text, word["table"], word["key"], word["value"].strip())
        from hpcpipe.job.syntax import explain_first

        column, message, hint = explain_first(Source(OVERRIDE_FILE, text))
        return fault(column, message, hint)
    (table, inside), *others = values.items()
    if others or not isinstance(inside, dict) or len(inside) != 1:
        return fault(1, "an override sets one key", f"repeat --set for every key, {example}")
    ((key, value),) = inside.items()
    return Override(number, text, table, key, value)
