"""How values and names are put into the sentences that users read.

Pure text: it must not know the schema.
"""

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from difflib import get_close_matches

LONGEST = 48


def show(value: object) -> str:
    """Return the value as TOML writes it, shortened where it is long."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = '"' + "".join(_escape(c) for c in value) + '"'
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(show, value)) + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{k} = {show(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, date | datetime | time):
        text = value.isoformat()
    else:
        text = _number(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def describe(value: object) -> str:
    """Return what the value is and how it was written, for `got …`."""
    kinds = (
        (bool, "the boolean "),
        (str, "the text "),
        (list | tuple, "the list "),
        (dict, "the table "),
        (date | datetime | time, "the date "),
    )
    return next((kind for type_, kind in kinds if isinstance(value, type_)), "") + show(value)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like the given one, if any is like it."""
    known = list(known)
    folded = {k.lower().replace("-", "_"): k for k in known}
    close = get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def type_of(value: object) -> str:
    """Return the type of a value with its article."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def listing(names: Sequence[str], last: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(names[:-1])} {last} {names[-1]}" if len(names) > 1 else "".join(names)


def _number(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "a number of more than 4000 digits"


def _escape(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char, f"\\u{ord(char):04x}")
