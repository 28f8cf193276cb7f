"""What a rank of each stage holds under a grouping, in bytes.

It must not know where the sizes come from: a model's layers, a measurement, or an emulated device's settings.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The parts of what one rank of a stage holds; bytes.

    Parameters
    ----------
    fixed
        Weights, gradients, the rank's shard of the optimizer's state, and fusion buffers: what no grouping changes.
    activation
        What one sample stashes for its backward on the whole stage.
    messages
        Send and receive buffers of one sample, for as long as it is in flight.
    """

    fixed: float
    activation: float
    messages: float = 0.0

    def peak(self, in_flight: int, microbatch_size: int) -> int:
        """Return the bytes with so many micro-batches in flight."""
        return round(self.fixed + in_flight * microbatch_size * (self.activation + self.messages))

    def room(self, limit: int, microbatch_size: int) -> int:
        """Return how many micro-batches may be in flight under a limit; below 1 none fits."""
        each = microbatch_size * (self.activation + self.messages)
        left = limit - self.fixed
        return (1 << 31) if each <= 0 and left >= 0 else int(left // each) if each > 0 else -1
