"""What no way of summing gradients can beat: the time of the network, of the computing, and of what must follow what.

Pure arithmetic on a model's layers; nothing is measured here.
"""

from collections.abc import Sequence

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

    The first layer's gradient is the last one to be final and its parameters the first to be needed, so its exchange
    stands between the backward and the next forward. And the link has nothing to do between the forward of the layer
    whose parameters come last and the first final gradient.

    Parameters
    ----------
    layer_bytes, forward_ms
        Of every layer, in the order of the forward; a backward takes twice as long as its forward.
    """
    around_first = 3 * sum(forward_ms) + communication_ms(layer_bytes[0], ranks=ranks, rate=rate)
    last = max(index for index, num_bytes in enumerate(layer_bytes) if num_bytes)
    idle = 3 * sum(forward_ms[last:])
    return max(around_first, communication_ms(sum(layer_bytes), ranks=ranks, rate=rate) + idle)
