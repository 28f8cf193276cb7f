"""What the names in a trace mean: the annotations of torch.distributed.pipelining and of torch.profiler.

A new framework is a line in a table here. It knows neither files nor how rows are made of names.
"""

import re
from dataclasses import dataclass
from enum import Enum

from hpcpipe.plan import Kind


class Role(Enum):
    """What a named span of a trace is."""

    TASK = "task"
    RECV = "recv"
    """The receiving of a message, named by the task that it feeds."""
    STEP = "step"
    UPDATE = "update"
    DATA = "data"
    ARRIVAL = "arrival"
    """An operation that ends when a message has come."""
    SENDING = "sending"
    """An operation that hands a message over."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """A role with the kind, virtual stage and micro-batch that the name gives, -1 where it gives none."""

    role: Role
    kind: Kind = Kind.F
    stage: int = -1
    microbatch: int = -1
    step: int = -1


_LETTERS = {"F": Kind.F, "B": Kind.B, "I": Kind.B, "W": Kind.W}
_ACTION = re.compile(r"PP:(\d+)(F|B|I|W)(\d+)")
_RECEIVING = re.compile(r"PP:(\d+)RECV_(F|B)(\d+)")
_WORDS = re.compile(r"(Forward|Backward) (\d+)")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_PREFIXES = {
    "gloo:recv": Role.ARRIVAL,
    "nccl:recv": Role.ARRIVAL,
    "c10d::send": Role.SENDING,
    "Optimizer.step": Role.UPDATE,
    "enumerate(DataLoader)": Role.DATA,
}


def meaning(name: str) -> Meaning | None:
    """Return what a span's name means, None for all the others."""
    if found := _ACTION.fullmatch(name):
        stage, letter, microbatch = found.groups()
        return Meaning(Role.TASK, _LETTERS[letter], int(stage), int(microbatch))
    if found := _RECEIVING.fullmatch(name):
        stage, letter, microbatch = found.groups()
        return Meaning(Role.RECV, _LETTERS[letter], int(stage), int(microbatch))
    if found := _WORDS.fullmatch(name):
        return Meaning(Role.TASK, Kind.F if found[1] == "Forward" else Kind.B, microbatch=int(found[2]))
    if found := _STEP.fullmatch(name):
        return Meaning(Role.STEP, step=int(found[1]))
    return next((Meaning(role) for prefix, role in _PREFIXES.items() if name.startswith(prefix)), None)
