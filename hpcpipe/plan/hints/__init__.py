"""The hints by name. Adding one means one module here and one line in the table below."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hpcpipe.plan.hint import Hint, Order
from hpcpipe.plan.hints.critical import critical, critical_hint
from hpcpipe.plan.hints.gpipe import gpipe
from hpcpipe.plan.hints.interleaved import interleaved
from hpcpipe.plan.hints.kfkb import kfkb
from hpcpipe.plan.hints.one_f_one_b import one_f_one_b
from hpcpipe.plan.hints.rounds import ReadyRule
from hpcpipe.plan.hints.zbv import zbv
from hpcpipe.plan.hints.zero_bubble import zb_h1, zb_h2
from hpcpipe.plan.placement import Placement, Shape
from hpcpipe.plan.profile import Profile
from hpcpipe.plan.task import Kind, Task


@dataclass(frozen=True, slots=True)
class Family:
    """What a named order wants: split backwards, a number of chunks (None: any, `chunks` says it), a shape, a `k`.

    `most_chunks`: the largest of any, where there are several stages.
    `profiled`: it is made from measured times, and ranks what is ready otherwise than it runs in order.
    """

    make: Callable[..., tuple[Task, ...]]
    split: bool = False
    chunks: int | None = 1
    shape: Shape = "round-robin"
    takes_k: bool = False
    profiled: bool = False
    most_chunks: int | None = None


FAMILIES: dict[str, Family] = {
    "gpipe": Family(gpipe),
    "1f1b": Family(one_f_one_b),
    "kfkb": Family(kfkb, takes_k=True),
    "interleaved": Family(interleaved, chunks=None),
    "zb-h1": Family(zb_h1, split=True),
    "zb-h2": Family(zb_h2, split=True),
    "zbv": Family(zbv, split=True, chunks=2, shape="v"),
    "critical": Family(critical, split=True, chunks=None, shape="v", profiled=True, most_chunks=2),
}
ORDERS: dict[str, Callable[..., tuple[Task, ...]]] = {name: family.make for name, family in FAMILIES.items()}
RULES: dict[str, Callable[..., Hint]] = {
    "bf": partial(ReadyRule, "bf"),
    "fb": partial(ReadyRule, "fb", first=Kind.F),
    "b-priority": partial(ReadyRule, "b-priority", rounds=False),
    "f-priority": partial(ReadyRule, "f-priority", first=Kind.F, rounds=False),
    "bfw": partial(ReadyRule, "bfw"),
}
SPLIT = frozenset({"bfw", *(name for name, family in FAMILIES.items() if family.split)})


def placement_of(name: str, *, stages: int, chunks: int | None = None) -> Placement:
    """Return where the named order wants its chunks.

    Raises
    ------
    ValueError
        `chunks` is another number than the order has.
    """
    family = FAMILIES[name]
    if None not in (chunks, family.chunks) and chunks != family.chunks:
        raise ValueError(f"hint {name!r} has {family.chunks} chunks a stage, not {chunks}")
    number = family.chunks or chunks or 1
    return Placement(stages, number, family.shape if number > 1 else "round-robin")


def make_hint(
    name: str,
    *,
    stage: int,
    stages: int,
    microbatches: int,
    k: int | None = None,
    chunks: int | None = None,
    profile: Profile | None = None,
) -> Hint:
    """Return the named hint for one stage; a `profile` is for hints that are made from measured times.

    Raises
    ------
    ValueError
        The name is not known (the message lists those that are), or `k` or `chunks` does not fit it.
    """
    if name in FAMILIES:
        family, placement = FAMILIES[name], placement_of(name, stages=stages, chunks=chunks)
        if family.takes_k != (k is not None):
            raise ValueError(f"hint {name!r} needs k" if family.takes_k else f"hint {name!r} has no k")
        if family.profiled:
            return critical_hint(
                stage=stage, stages=stages, microbatches=microbatches, chunks=placement.chunks, profile=profile
            )
        more = {"k": k} if family.takes_k else {"chunks": placement.chunks} if family.chunks is None else {}
        return Order(name, family.make(stage=stage, stages=stages, microbatches=microbatches, **more))
    if name in RULES:
        return RULES[name](microbatches=microbatches, chunks=chunks or 1)
    raise ValueError(f"unknown hint {name!r}; known are {', '.join([*ORDERS, *RULES])}")


__all__ = ["FAMILIES", "ORDERS", "RULES", "SPLIT", "Family", "make_hint", "placement_of"]
