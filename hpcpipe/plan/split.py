"""Cut a chain of layers into contiguous stages of nearly equal cost."""

from collections.abc import Sequence
from itertools import accumulate


def balanced_split(costs: Sequence[float], stages: int, *, before: float = 0.0, after: float = 0.0) -> tuple[int, ...]:
    """Return the number of layers of each stage so that the dearest stage is as cheap as possible, none empty.

    `before` and `after` are costs that the first and the last stage carry besides (embedding, head).
    Of equally good cuts the one with the smallest sum of squared stage costs is taken, so that all stages are even.
    Exact dynamic programme, O(stages · layers²).

    Raises
    ------
    ValueError
        More stages than layers.
    """
    layers = len(costs)
    if stages > layers:
        raise ValueError(f"{stages} stages cannot each hold one of {layers} layers")
    prefix = [0.0, *accumulate(costs)]

    def cost(stage: int, begin: int, end: int) -> float:
        extra = (before if stage == 0 else 0.0) + (after if stage == stages - 1 else 0.0)
        return prefix[end] - prefix[begin] + extra

    infinite = (float("inf"), float("inf"))
    best = [(0.0, 0.0)] + [infinite] * layers
    cuts: list[list[int]] = []
    for stage in range(stages):
        row, cut = [infinite] * (layers + 1), [0] * (layers + 1)
        for end in range(stage + 1, layers - (stages - 1 - stage) + 1):
            for begin in range(stage, end):
                here = cost(stage, begin, end)
                candidate = (max(best[begin][0], here), best[begin][1] + here * here)
                if candidate < row[end]:
                    row[end], cut[end] = candidate, begin
        best = row
        cuts.append(cut)
    sizes, end = [], layers
    for cut in reversed(cuts):
        sizes.append(end - cut[end])
        end = cut[end]
    return tuple(reversed(sizes))
