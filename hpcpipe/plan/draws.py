"""Random draws as pure functions of where they are used, so that every schedule meets the same step.

The integer hash is SplitMix64's finaliser (Steele, Lea and Flood, 2014), the same on every machine.
"""

from math import cos, log, pi, sqrt

_MASK = (1 << 64) - 1


def uniform(seed: int, *where: int) -> float:
    """Return a number in (0, 1) for a place such as (step, stage, micro-batch, kind)."""
    state = _mix(seed & _MASK)
    for number in where:
        state = _mix(state ^ (number & _MASK))
    return ((state >> 11) + 0.5) * 2.0**-53


def normal(seed: int, *where: int) -> float:
    """Return a standard normal number for a place (Box and Muller, 1958)."""
    return sqrt(-2.0 * log(uniform(seed, *where, 1))) * cos(2.0 * pi * uniform(seed, *where, 2))


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
