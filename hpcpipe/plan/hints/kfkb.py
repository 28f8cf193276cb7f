"""kFkB: 1F1B with groups of k micro-batches in place of single ones (Ada-Grouper, arXiv 2303.01675).

A group's messages hide behind the work on its other members; the price is memory. k = 1 is 1F1B, k = M is GPipe.
"""

from hpcpipe.plan.hints.one_f_one_b import one_f_one_b
from hpcpipe.plan.task import Task


def kfkb(*, stage: int, stages: int, microbatches: int, k: int) -> tuple[Task, ...]:
    """Return the stage's order: 1F1B over groups, each group in micro-batch order; the last group may be shorter.

    At its peak min(M, k(S - s)) micro-batches are in flight on stage s.
    """
    if k < 1:
        raise ValueError(f"kfkb with k = {k}: a group has at least 1 micro-batch")
    groups = one_f_one_b(stage=stage, stages=stages, microbatches=-(-microbatches // k))
    return tuple(
        Task(kind, m) for kind, group, _ in groups for m in range(group * k, min(microbatches, (group + 1) * k))
    )
