"""A rank's log made of rows that no rank has written: those of a simulation, or of another framework's trace.

It invents nothing: what such rows do not tell (losses, memory, sizes of messages) is left empty.
"""

from collections.abc import Sequence

import numpy as np

from hpcpipe.events import Events, LogHeader, MemoryRows, RankLog, Steps
from hpcpipe.events.clock import fit_clock
from hpcpipe.events.tables import Decisions

Row = tuple[int, int, int, int, int, int, int, int, int, int]
"""(step, micro-batch, kind, chunk, t_ready, t_start, t_end, wait_class, peer, flags), times in ns."""
_NONE = np.empty(0, dtype=np.int64)


def memory_log(
    header: LogHeader, rows: Sequence[Row], *, steps: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> RankLog:
    """Return the log of a rank; `begins` and `ends` are those of its `steps` (ns)."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 10)
    table = table[np.argsort(table[:, 6], kind="stable")]
    step, microbatch, kind, chunk, ready, start, end, wait_class, peer, flags = table.T
    nothing, none = np.zeros(len(table), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    return RankLog(
        header=header,
        rows=MemoryRows(
            Events(
                step=step,
                microbatch=microbatch,
                kind=kind,
                chunk=chunk,
                t_ready=ready,
                t_start=start,
                t_end=end,
                wait_class=wait_class,
                peer=peer,
                nbytes=nothing,
                rank_in_hint=nothing - 1,
                ready_count=nothing,
                flags=flags,
            )
        ),
        steps=Steps(
            step=np.array(steps, dtype=np.int64),
            t_begin=np.array(begins, dtype=np.int64),
            t_end=np.array(ends, dtype=np.int64),
            loss=np.full(len(steps), np.nan),
            grad_norm=np.full(len(steps), np.nan),
            tokens=none,
            hint=np.full(len(steps), "", dtype=object),
            k=none,
            bucket_bytes=none,
            peak_bytes=none,
        ),
        decisions=Decisions(_NONE, _NONE, _NONE),
        clock=fit_clock(_NONE, _NONE, _NONE),
        complete=True,
    )
