"""Random seeds as a pure function of where they are used, never of the order in which they are asked for."""

from hashlib import blake2b


def derive_seed(seed: int, *where: int | str) -> int:
    """Return 63 random bits for a place such as (step, layer, micro-batch, kind), the same on every machine."""
    text = "/".join([str(seed), *map(str, where)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
