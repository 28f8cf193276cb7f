"""Cut a chain of layers into contiguous pieces of nearly equal cost, and so that the stages that hold them are even."""

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


def even_stages(
    sizes: Sequence[int], costs: Sequence[float], owners: Sequence[int], *, before: float = 0.0, after: float = 0.0
) -> tuple[int, ...]:
    """Return sizes of pieces by which the dearest stage is as cheap as moving single layers can make it.

    Pieces that are as even as possible can add up to uneven stages: 1, 2, 2, 1 layers in a V of two stages are 2 and 4.
    `owners` names the stage of each piece. A move takes a layer from a piece of the dearest stage and gives it to any
    other piece; those between pass on one layer each. Of moves that make the dearest stage equally cheap the one is
    taken that leaves the stages, then the pieces, most even.
    """
    prefix = [0.0, *accumulate(costs)]
    extra = [0.0] * len(sizes)
    extra[0] += before
    extra[-1] += after

    def judge(sizes: Sequence[int]) -> tuple[tuple[float, float, float], int]:
        stages = [0.0] * (max(owners) + 1)
        squares, begin = 0.0, 0
        for piece, size in enumerate(sizes):
            cost = prefix[begin + size] - prefix[begin] + extra[piece]
            stages[owners[piece]] += cost
            squares += cost * cost
            begin += size
        dearest = max(range(len(stages)), key=stages.__getitem__)
        return (stages[dearest], sum(cost * cost for cost in stages), squares), dearest

    best, (value, dearest) = list(sizes), judge(sizes)
    while True:
        moved = [
            [size - (piece == giver) + (piece == taker) for piece, size in enumerate(best)]
            for giver, owner in enumerate(owners)
            if owner == dearest and best[giver] > 1
            for taker in range(len(best))
            if taker != giver
        ]
        found = min(moved, key=lambda each: judge(each)[0], default=best)
        (lower, next_dearest) = judge(found)
        if not lower < value:
            return tuple(best)
        best, value, dearest = found, lower, next_dearest
