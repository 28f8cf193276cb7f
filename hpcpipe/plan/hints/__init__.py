"""The hints by name. Adding one means one module here and one line in the tables below."""

from collections.abc import Callable

from hpcpipe.plan.hint import Hint, Order
from hpcpipe.plan.hints.gpipe import gpipe
from hpcpipe.plan.hints.one_f_one_b import one_f_one_b
from hpcpipe.plan.hints.rounds import BackwardForwardRounds
from hpcpipe.plan.task import Task

ORDERS: dict[str, Callable[..., tuple[Task, ...]]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
RULES: dict[str, Callable[..., Hint]] = {"bf": BackwardForwardRounds}


def make_hint(name: str, *, stage: int, stages: int, microbatches: int) -> Hint:
    """Return the named hint for one stage.

    Raises
    ------
    ValueError
        The name is not known; the message lists those that are.
    """
    if name in ORDERS:
        return Order(name, ORDERS[name](stage=stage, stages=stages, microbatches=microbatches))
    if name in RULES:
        return RULES[name](microbatches=microbatches)
    raise ValueError(f"unknown hint {name!r}; known are {', '.join([*ORDERS, *RULES])}")


__all__ = ["ORDERS", "RULES", "make_hint"]
