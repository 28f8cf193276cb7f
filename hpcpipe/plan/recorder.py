"""What a rank tells of a step, event by event; who keeps the events and how is not this file's."""

from typing import Protocol

FLAG_BACKWARD = 1
"""Bit of `flags`: the message is a gradient and feeds a backward; without it, an activation that feeds a forward."""

FLAG_RECOMPUTED = 2
"""Bit of `flags`: the forward computes activations again that were dropped to save memory."""

FLAG_REPLAYED = 4
"""Bit of `flags`: the task was dispatched in its turn of another run's recorded order."""

FLAG_DEVICE_TIMES = 8
"""Bit of `flags`: begin and end were told by the device, a GPU's events put on this host's clock; else the host's."""


class Recorder(Protocol):
    """Where events go; times in ns of this rank's clock, but `t_ready` of a message in its sender's."""

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Keep one event (columns: events/schema.py); cheap, without input or output."""
