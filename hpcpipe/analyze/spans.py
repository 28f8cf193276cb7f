"""A rank's time as few spans: pieces of the accounting that one row of the log named are joined again.

Pictures and exports show them; which class a piece has is accounting's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcpipe.analyze.nodes import RankPart
from hpcpipe.analyze.rows import Rows
from hpcpipe.plan import TimeClass

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankSpans:
    """One after the other without holes, span i from edge i to edge i + 1 (ns of rank 0's clock).

    `step`, `microbatch`, `chunk` and `peer` are those of the row that named the span, -1 where none did; `backward`
    tells a wait for a gradient from one for an activation.
    """

    edges: Ints
    classes: NDArray[np.uint8]
    step: Ints
    microbatch: Ints
    chunk: Ints
    peer: Ints
    flags: Ints

    def __len__(self) -> int:
        return len(self.classes)


def rank_spans(part: RankPart) -> RankSpans:
    """Return the spans of a rank in its windows."""
    pieces = part.account.pieces
    same = (pieces.rows[1:] == pieces.rows[:-1]) & (pieces.classes[1:] == pieces.classes[:-1])
    keep = np.concatenate([[True], ~same])[: len(pieces.classes)]
    begins = np.flatnonzero(keep)
    rows = pieces.rows[begins]

    def column(values: NDArray[np.generic]) -> Ints:
        chosen = np.full(len(rows), -1, dtype=np.int64)
        chosen[rows >= 0] = values[rows[rows >= 0]]
        return chosen

    of: Rows = part.rows
    return RankSpans(
        np.append(pieces.edges[begins], pieces.edges[-1:]),
        pieces.classes[begins],
        column(of.step),
        column(of.microbatch),
        column(of.chunk),
        column(of.peer),
        np.maximum(column(of.flags), 0),
    )


TASK_CLASSES = {
    TimeClass.FORWARD: "F",
    TimeClass.BACKWARD: "B",
    TimeClass.WEIGHT: "W",
    TimeClass.RECOMPUTE: "F",
}
"""Classes whose spans are tasks with a micro-batch and a chunk, by the letter of their kind."""
