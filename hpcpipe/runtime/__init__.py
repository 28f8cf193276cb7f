"""Real time on top of plan/: the ranks, their messages, the engine that runs tasks as the plan chooses them.

`stage` needs torch and is imported where it is meant; the rest needs no array library but numpy.
"""

from hpcpipe.runtime.clock import ClockSample, clock_shifts, compare_clocks, now
from hpcpipe.runtime.clock_watch import ClockWatch
from hpcpipe.runtime.engine import Engine, StepTimes
from hpcpipe.runtime.failure import Failure, FailureGuard, PeerLostError
from hpcpipe.runtime.late import LateMailbox
from hpcpipe.runtime.ledger import Ledger
from hpcpipe.runtime.mailbox import Inlet, Mailbox
from hpcpipe.runtime.mesh import Mesh, Place
from hpcpipe.runtime.node_memory import NodeMemory
from hpcpipe.runtime.peers import Peer, PeerWatch, introduce, read_peers
from hpcpipe.runtime.snapshot import snapshot
from hpcpipe.runtime.synthetic import NoBuckets, SyntheticStage
from hpcpipe.runtime.waiting import Waiting, choose_poll
from hpcpipe.runtime.watchdog import Watchdog
from hpcpipe.runtime.world import World
from hpcpipe.stop import StopWish

__all__ = [
    "ClockSample",
    "ClockWatch",
    "Engine",
    "Failure",
    "FailureGuard",
    "Inlet",
    "LateMailbox",
    "Ledger",
    "Mailbox",
    "Mesh",
    "NoBuckets",
    "NodeMemory",
    "Peer",
    "PeerLostError",
    "PeerWatch",
    "Place",
    "StepTimes",
    "StopWish",
    "SyntheticStage",
    "Waiting",
    "Watchdog",
    "World",
    "choose_poll",
    "clock_shifts",
    "compare_clocks",
    "introduce",
    "now",
    "read_peers",
    "snapshot",
]
