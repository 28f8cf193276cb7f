"""From the models that `[variability]` names to the objects of plan/ that draw from them, in ns.

The runtime and the simulator both ask here, so a job means the same to both.
"""

from hpcpipe.job import injected
from hpcpipe.job.schema import Variability
from hpcpipe.plan.delays import Bursts, Delay, LognormalDelay
from hpcpipe.plan.variability import Compute, HeavyTail, Jitter, Lognormal, MicrobatchCost, Steady, Straggler

NS_PER_MS = 1e6


def compute_model(variability: Variability) -> Compute:
    """Return how the times of tasks vary."""
    match variability.compute:
        case injected.NoCompute():
            return Steady()
        case injected.Lognormal(sigma=sigma):
            return Lognormal(sigma)
        case injected.HeavyTail(probability=probability, factor=factor):
            return HeavyTail(probability, factor)
        case injected.Straggler(stage=stage, factor=factor):
            return Straggler(stage, factor)
        case injected.Jitter(probability=probability, base_ms=base, alpha=alpha):
            return Jitter(probability, base * NS_PER_MS, alpha)
        case injected.Microbatch(sigma=sigma):
            return MicrobatchCost(sigma)
        case injected.Encoder(stages=stages, sigma=sigma):
            return MicrobatchCost(sigma, stages)


def delay_model(variability: Variability) -> Delay | None:
    """Return what is added to the time of every message, or None where nothing is."""
    match variability.network:
        case injected.NoNetwork():
            return None
        case injected.ConstantDelay(base_ms=base):
            return LognormalDelay(base * NS_PER_MS)
        case injected.LognormalDelay(base_ms=base, sigma=sigma, overtaking=overtaking):
            return LognormalDelay(base * NS_PER_MS, sigma, overtaking)
        case injected.Bursts(base_ms=base, every_ms=every, length_ms=length, factor=factor):
            return Bursts(base * NS_PER_MS, every * NS_PER_MS, length * NS_PER_MS, factor)
