"""In which order a step's micro-batches enter the pipeline: permutations of the global batch by predicted cost.

Pure arithmetic; it knows no schedule and no durations. What simulating the step finds is in simulate/admission.py.
"""

from collections.abc import Sequence

ADMISSIONS = ("as-given", "ascending", "descending", "pyramid")
"""The rules that need nothing but one cost a micro-batch."""


def admission_order(rule: str, costs: Sequence[float]) -> tuple[int, ...]:
    """Return which micro-batch of the global batch takes each place of the step: place p takes `order[p]`.

    Parameters
    ----------
    rule
        `"as-given"`; `"ascending"` and `"descending"` by cost; `"pyramid"`: cheapest at both ends, dearest in the
        middle, so that the pipeline fills and drains quickly and dear micro-batches overlap with dear ones.
    costs
        Predicted, of each micro-batch, in any unit. Of equal costs the smaller index counts as the cheaper one.

    Raises
    ------
    ValueError
        The rule is not known.
    """
    if rule == "as-given":
        return tuple(range(len(costs)))
    if rule == "ascending":
        return _cheapest_first(costs)
    if rule == "descending":
        return tuple(sorted(range(len(costs)), key=lambda index: (-costs[index], index)))
    if rule == "pyramid":
        return peaked_order(costs, early=0.5)
    raise ValueError(f"unknown admission {rule!r}; known are {', '.join(ADMISSIONS)}")


def peaked_order(costs: Sequence[float], *, early: float) -> tuple[int, ...]:
    """Return an order that rises to the dearest micro-batch and falls again, `early` of the cheaper ones before it.

    With one half it is the pyramid, with 1 it rises to the end, with 0 it falls from the start. From the cheapest on,
    each goes to whichever slope lacks most of its share.

    Raises
    ------
    ValueError
        `early` is not within 0 and 1.
    """
    if not 0.0 <= early <= 1.0:
        raise ValueError(f"{early:g} of the micro-batches before the dearest: it is a share, 0 to 1")
    rising: list[int] = []
    falling: list[int] = []
    for count, index in enumerate(_cheapest_first(costs), 1):
        slope = rising if len(rising) + 0.5 <= early * count else falling
        slope.append(index)
    return (*rising, *reversed(falling))


def _cheapest_first(costs: Sequence[float]) -> tuple[int, ...]:
    return tuple(sorted(range(len(costs)), key=lambda index: (costs[index], index)))
