"""The analysed rows as polars frames, a step window at a time: for notebooks, pictures and exports.

It hands on what accounting names and computes nothing.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from hpcpipe.analyze.nodes import RankPart
from hpcpipe.analyze.stream import Cursor, batches
from hpcpipe.analyze.windows import StepChoice, make_windows
from hpcpipe.events import RunLog
from hpcpipe.plan import Kind, TimeClass

_CLASSES = [each.name.lower() for each in TimeClass]
_KINDS = [*(kind.name for kind in Kind), ""]


def frames(run: RunLog, steps: StepChoice = None) -> Iterator[tuple[int, pl.DataFrame]]:
    """Yield each step with its window as a frame: a row a piece of a rank's time, classified, without holes.

    Columns: `rank`, `stage`, `class`, `t_start`, `t_end` (ns of rank 0's clock), and of the row of the log that named
    the piece `kind` ("" where none did, as with the runtime's own time), `row_step`, `microbatch`, `chunk` and `peer`.
    The lengths of every rank sum to the window's.

    Raises
    ------
    AnalysisError
        The log holds no such step.
    """
    windows, ranks = make_windows(run, steps)
    cursors = tuple(Cursor(rank, windows) for rank in ranks)
    for some in batches(cursors, windows):
        frame = pl.concat([_frame(RankPart.of(cursor, some)) for cursor in cursors])
        for i, step in enumerate(some.steps.tolist()):
            low, high = int(some.edges[i]), int(some.edges[i + 1])
            yield step, frame.filter((pl.col("t_start") >= low) & (pl.col("t_start") < high))


def _frame(part: RankPart) -> pl.DataFrame:
    pieces, rows = part.account.pieces, part.rows
    named = pieces.rows >= 0
    index = pieces.rows[named]

    def of_row(column: np.ndarray) -> pl.Series:
        values = np.full(len(named), -1, dtype=np.int64)
        values[named] = column[index]
        return pl.Series(values)

    kinds = np.full(len(named), len(Kind), dtype=np.int64)
    kinds[named] = rows.kind[index]
    return pl.DataFrame(
        {
            "rank": pl.repeat(part.log.rank, len(named), dtype=pl.Int32, eager=True),
            "stage": pl.repeat(part.log.header.stage, len(named), dtype=pl.Int32, eager=True),
            "class": pl.Series(_CLASSES, dtype=pl.Enum(_CLASSES)).gather(pieces.classes.astype(np.int64)),
            "t_start": pl.Series(pieces.edges[:-1]),
            "t_end": pl.Series(pieces.edges[1:]),
            "kind": pl.Series(_KINDS, dtype=pl.Enum(_KINDS)).gather(kinds),
            "row_step": of_row(rows.step),
            "microbatch": of_row(rows.microbatch),
            "chunk": of_row(rows.chunk),
            "peer": of_row(rows.peer),
        }
    )
