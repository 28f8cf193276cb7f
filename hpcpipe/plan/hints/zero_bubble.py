"""ZB-H1 and ZB-H2: 1F1B with the backward split, the weight gradients W held back to fill the drain.

Qi et al., arXiv 2401.10241, section 2. The further down the pipeline a stage is, the more W it holds back early, so
that the gradients of its inputs leave sooner; it has the memory because its forwards are fewer.
"""

from hpcpipe.plan.hints.one_f_one_b import one_f_one_b
from hpcpipe.plan.task import Kind, Task


def zb_h1(*, stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """Return the stage's order: 1F1B where W follows its B by s backwards.

    With F = B = W a step takes M(F + B + W) + (S - 1)(F + B - W), and no stage stashes more than S (1F1B's stage 0).
    """
    return _with_late_weights(
        one_f_one_b(stage=stage, stages=stages, microbatches=microbatches), held=stage, microbatches=microbatches
    )


def zb_h2(*, stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """Return the stage's order: a warm-up of 2(S - 1 - s) forwards, and W follows its B by 2s backwards.

    With F = B = W no stage idles between its first and its last task: M(F + B + W) + (S - 1)(F + B - 2W) on each, for
    up to 2S - 1 stashed.
    """
    longer = one_f_one_b(stage=2 * stage, stages=2 * stages - 1, microbatches=microbatches)
    return _with_late_weights(longer, held=2 * stage, microbatches=microbatches)


def _with_late_weights(pairs: tuple[Task, ...], *, held: int, microbatches: int) -> tuple[Task, ...]:
    order: list[Task] = []
    for task in pairs:
        order.append(task)
        if task.kind is Kind.B and task.microbatch >= held:
            order.append(Task(Kind.W, task.microbatch - held))
    return (*order, *(Task(Kind.W, m) for m in range(max(0, microbatches - held), microbatches)))
