"""1F1B: a short warm-up, then one forward and one backward in turn (PipeDream-flush; Narayanan et al., 2021)."""

from hpcpipe.plan.task import Kind, Task


def one_f_one_b(*, stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """Return the stage's order: min(M, S - 1 - s) warm-up forwards, pairs F B, then the remaining backwards.

    At its peak min(M, S - s) micro-batches are in flight on stage s.
    """
    warmup = min(microbatches, stages - 1 - stage)
    order = [Task(Kind.F, m) for m in range(warmup)]
    for m in range(warmup, microbatches):
        order += [Task(Kind.F, m), Task(Kind.B, m - warmup)]
    order += [Task(Kind.B, m) for m in range(microbatches - warmup, microbatches)]
    return tuple(order)
