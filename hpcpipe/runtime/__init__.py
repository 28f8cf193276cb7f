"""Real time on top of plan/: the ranks, their messages, the engine that runs tasks as the plan chooses them."""

from hpcpipe.runtime.clock import ClockSample, compare_clocks, now
from hpcpipe.runtime.clock_watch import ClockWatch
from hpcpipe.runtime.engine import Engine, Recorder, StepTimes
from hpcpipe.runtime.failure import Failure, FailureGuard, PeerLostError
from hpcpipe.runtime.ledger import Ledger
from hpcpipe.runtime.mailbox import Mailbox
from hpcpipe.runtime.mesh import Mesh, Place
from hpcpipe.runtime.node_memory import NodeMemory
from hpcpipe.runtime.peers import Peer, PeerWatch
from hpcpipe.runtime.stage import Stage
from hpcpipe.runtime.waiting import Waiting, choose_poll
from hpcpipe.runtime.world import World

__all__ = [
    "ClockSample",
    "ClockWatch",
    "Engine",
    "Failure",
    "FailureGuard",
    "Ledger",
    "Mailbox",
    "Mesh",
    "NodeMemory",
    "Peer",
    "PeerLostError",
    "PeerWatch",
    "Place",
    "Recorder",
    "Stage",
    "StepTimes",
    "Waiting",
    "World",
    "choose_poll",
    "compare_clocks",
    "now",
]
