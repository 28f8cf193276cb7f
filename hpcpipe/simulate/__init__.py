"""Virtual time on top of plan/: durations that vary, links that delay, and the runtime's own decisions."""

from hpcpipe.plan.variability import (
    Compute,
    HeavyTail,
    Jitter,
    Lognormal,
    MicrobatchCost,
    Steady,
    Straggler,
)
from hpcpipe.simulate.admission import Admission, StashLimit, auto_admission
from hpcpipe.simulate.compiled import CompiledSchedule, SimulatedArrays
from hpcpipe.simulate.compiled_step import simulate_compiled
from hpcpipe.simulate.durations import vary_durations
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.run import LinkMessages, MessagesAsRecorded, Scenario, SimulatedRun, simulate_run
from hpcpipe.simulate.step import Message, Row, SimulatedStep, simulate_step
from hpcpipe.simulate.times import Cut, Edge, Place, RecordedMessages, RecordedTimes, UsualTimes

__all__ = [
    "Admission",
    "CompiledSchedule",
    "Compute",
    "Cut",
    "Edge",
    "HeavyTail",
    "Jitter",
    "Link",
    "LinkMessages",
    "Lognormal",
    "Message",
    "MessagesAsRecorded",
    "MicrobatchCost",
    "Network",
    "Place",
    "RecordedMessages",
    "RecordedTimes",
    "Row",
    "Scenario",
    "SimulatedArrays",
    "SimulatedRun",
    "SimulatedStep",
    "StashLimit",
    "Steady",
    "Straggler",
    "UsualTimes",
    "auto_admission",
    "simulate_compiled",
    "simulate_run",
    "simulate_step",
    "vary_durations",
]
