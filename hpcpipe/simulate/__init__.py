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
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.step import Row, SimulatedStep, simulate_step

__all__ = [
    "Compute",
    "HeavyTail",
    "Jitter",
    "Link",
    "Lognormal",
    "MicrobatchCost",
    "Network",
    "Row",
    "SimulatedStep",
    "Steady",
    "Straggler",
    "simulate_step",
]
