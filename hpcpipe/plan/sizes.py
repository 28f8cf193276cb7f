"""Sizes in bytes as people write them, such as "512 MiB" or "2GB". Pure text and arithmetic."""

import re
from fractions import Fraction

SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kKMGTmgt]?)(i?)[Bb]")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str) -> int:
    """Return the bytes of a size: powers of 1000, or of 1024 with an i.

    Raises
    ------
    ValueError
        It is no such size.
    """
    found = SIZE.fullmatch(text)
    if not found:
        raise ValueError(f'{text!r} is no size in bytes, such as "512 MiB" or "2 GB"')
    unit: int = (1024 if found[3] else 1000) ** _UNITS[found[2].lower()]
    return round(Fraction(found[1]) * unit)
