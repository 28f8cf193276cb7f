"""GPipe: all forwards, then all backwards (Huang et al., 2019). An order, so it serves `fixed` and `ready`."""

from hpcpipe.plan.task import Kind, Task


def gpipe(*, stage: int, stages: int, microbatches: int) -> tuple[Task, ...]:
    """Return the stage's order; every stage has the same one, and all micro-batches are in flight at its peak."""
    del stage, stages
    forwards = tuple(Task(Kind.F, m) for m in range(microbatches))
    return forwards + tuple(Task(Kind.B, m) for m in range(microbatches))
