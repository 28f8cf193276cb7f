"""Does every message arrive after it was sent? Where it does not, clocks were not corrected well enough.

It reads a merged log and changes nothing.
"""

from dataclasses import dataclass

import numpy as np

from hpcpipe.events.reader import RunLog
from hpcpipe.events.schema import KINDS

_RECV = KINDS.index("RECV")


@dataclass(frozen=True, slots=True)
class Causality:
    """Messages whose sending is known, and those among them that seem to arrive before they were sent.

    `worst_ns` is by how much at most, and `worst` between whom: world ranks of sender and receiver. `explained` are
    the violations that are no longer than the uncertainty of both clocks; others mean clocks that drift unevenly.
    """

    messages: int = 0
    violations: int = 0
    explained: int = 0
    worst_ns: int = 0
    worst: tuple[int, int] | None = None


def causality(run: RunLog) -> Causality:
    """Compare every received message's arrival with its sending, both on rank 0's clock."""
    uncertainty = {rank.rank: rank.clock.uncertainty for rank in run.ranks}
    messages = violations = explained = worst_ns = 0
    worst: tuple[int, int] | None = None
    for rank in run.ranks:
        events = rank.events
        rows = events.take((events.kind == _RECV) & (events.t_ready >= 0))
        ahead = rows.t_ready - rows.t_end
        messages += len(rows)
        early = np.flatnonzero(ahead > 0)
        if not len(early):
            continue
        allowed = uncertainty[rank.rank] + np.array([uncertainty.get(peer, 0) for peer in rows.peer[early].tolist()])
        violations += len(early)
        explained += int(np.count_nonzero(ahead[early] <= allowed))
        most = early[int(np.argmax(ahead[early]))]
        if int(ahead[most]) > worst_ns:
            worst_ns, worst = int(ahead[most]), (int(rows.peer[most]), rank.rank)
    return Causality(messages, violations, explained, worst_ns, worst)
