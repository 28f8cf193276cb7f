"""What no way of summing gradients can beat: the time of the network, of the computing, and of what must follow what.

Pure arithmetic on a model's layers; nothing is measured here.
"""

from collections.abc import Sequence
from itertools import accumulate

FLOAT_BYTES = 4
BITS = 8
RATES = {"1gbit": 1e9, "10gbit": 10e9}
"""Bits a second, by the name that tc has for it."""


def communication_ms(num_bytes: int, *, ranks: int, rate: float) -> float:
    """Return how long a link is busy at least: each rank sends 2 (n - 1) / n of the bytes, and receives as many.

    The bound of Patarasuk and Yuan (J. Parallel Distrib. Comput. 69, 2009); `rate` in bits a second.
    """
    return 2 * (ranks - 1) / ranks * num_bytes * BITS / rate * 1e3


def bound_ms(num_bytes: int, *, compute_ms: float, ranks: int, rate: float) -> float:
    """Return the longer of computing and communicating: a step cannot be shorter, whatever overlaps."""
    return max(compute_ms, communication_ms(num_bytes, ranks=ranks, rate=rate))


def chain_ms(layer_bytes: Sequence[int], forward_ms: Sequence[float], *, ranks: int, rate: float) -> float:
    """Return the longest chain of what must follow what in a steady step; at least `bound_ms`.

    Gradients of the layers up to some layer are final no earlier than its backward ends, and their parameters must all
    be there before its next forward; so between the two stand all exchanges of these layers, and beside them the
    computing of this layer and all that follow it. Whatever the order, a step is at least the longest such sum.

    Parameters
    ----------
    layer_bytes, forward_ms
        Of every layer, in the order of the forward; a backward takes twice as long as its forward.
    """
    until = accumulate(layer_bytes)
    return max(
        communication_ms(exchanged, ranks=ranks, rate=rate) + 3 * sum(forward_ms[layer:])
        for layer, exchanged in enumerate(until)
    )
