"""How each kind of work and each class of waiting is drawn, in the colours of Okabe and Ito, safe for the colour-blind.

Work is strong, waiting is pale and differs by hatching as well, so a picture reads without colours too.
"""

from dataclasses import dataclass

from hpcpipe.analyze.words import NAME
from hpcpipe.plan import Kind, TimeClass

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"


@dataclass(frozen=True, slots=True)
class Look:
    """Fill, outline, hatching and colour of the numbers inside; higher layers lie on top."""

    name: str
    color: str
    edge: str = "white"
    line: float = 0.4
    hatch: str | None = None
    ink: str = "white"
    layer: float = 3


TASKS = {
    Kind.F: Look("forward", BLUE),
    Kind.B: Look("backward", ORANGE, ink="black"),
    Kind.W: Look("weight", GREEN),
    Kind.UPDATE: Look("update", BLACK),
    Kind.DATA: Look("data", YELLOW),
    Kind.CHECKPOINT: Look("checkpoint", "#8C6D31"),
}

COLLECTIVES = {
    Kind.RS: Look("reduce-scatter", VERMILION, edge=VERMILION, line=0.2, layer=4),
    Kind.AG: Look("all-gather", PURPLE, edge=PURPLE, line=0.2, layer=4),
    Kind.NORM: Look("gradient norm", "#666666", edge="#666666", line=0.2, layer=4),
}


def _wait(time_class: TimeClass, color: str, ink: str, hatch: str | None) -> Look:
    return Look(NAME[time_class], color, edge=ink, line=0, hatch=hatch, layer=1)


WAITS = {
    TimeClass.WARMUP: _wait(TimeClass.WARMUP, "#EDEDED", "#BDBDBD", None),
    TimeClass.DRAIN: _wait(TimeClass.DRAIN, "#EDEDED", "#BDBDBD", "---"),
    TimeClass.DEPENDENCY: _wait(TimeClass.DEPENDENCY, "#DCEAF5", "#8FB8D6", "////"),
    TimeClass.TRANSFER: _wait(TimeClass.TRANSFER, "#F8DDD0", "#D58F6A", "\\\\\\\\"),
    TimeClass.ORDER: _wait(TimeClass.ORDER, "#F6E3EE", "#CC9AB8", "xxxx"),
    TimeClass.CAP: _wait(TimeClass.CAP, "#D9F0E8", "#7DBFA8", "++++"),
    TimeClass.AGREEMENT: _wait(TimeClass.AGREEMENT, "#FBF8D3", "#C9BE52", "oo"),
    TimeClass.EXPOSED_COMM: _wait(TimeClass.EXPOSED_COMM, "#F3D9D9", "#C27C7C", "----"),
}
"""What is neither here nor work stays white: the runtime's own time."""

USEFUL_LOOKS = {
    TimeClass.FORWARD: TASKS[Kind.F],
    TimeClass.BACKWARD: TASKS[Kind.B],
    TimeClass.WEIGHT: TASKS[Kind.W],
    TimeClass.UPDATE: TASKS[Kind.UPDATE],
    TimeClass.RECOMPUTE: Look(NAME[TimeClass.RECOMPUTE], SKY, edge=BLUE, hatch=".."),
    TimeClass.DATA: TASKS[Kind.DATA],
    TimeClass.CHECKPOINT: TASKS[Kind.CHECKPOINT],
    TimeClass.RUNTIME: Look(NAME[TimeClass.RUNTIME], "#FFFFFF", edge="#BDBDBD"),
}
"""How the classes of work are drawn where bars stand for classes."""
