"""The section `[device]`: where stages compute, in one variant for each kind.

It must not ask what this machine has: a job is checked where it is written.
"""

from typing import Literal

from pydantic import Field

from hpcpipe.job import values
from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, Milliseconds, Sizes

DeviceKind = Literal["auto", "cpu", "cuda", "emulated"]


class Processor(Section):
    """`[device]` of kind "cpu": this rank's share of the cores that it may use."""

    kind: DeviceKind = Field(default="cpu", description="kind of device")
    compile: bool = Field(default=False, description="whether torch.compile makes the layers' kernels")


class Device(Section):
    """`[device]` of kind "cuda", a GPU for each rank, or "auto": that where every rank sees one, else the CPU."""

    kind: DeviceKind = Field(default="auto", description="kind of device")
    share: bool = Field(default=False, description="whether ranks may share a GPU")
    launch_ahead: Count = Field(default=2, description="tasks that a GPU is given at a time; it does them in order")
    compile: bool = Field(default=False, description="whether torch.compile makes the layers' kernels")
    nvtx: bool = Field(default=False, description="whether profilers see a range for every task")


class Emulated(Section):
    """`[device]` of kind "emulated": tasks take time and nothing else, so many ranks fit on few cores.

    Times and sizes are one for all stages or a list with one for each; a chunk takes its share of its stage's time.
    """

    kind: DeviceKind = Field(default="emulated", description="kind of device")
    forward_ms: Milliseconds = Field(description="time of a micro-batch's forward on a stage", examples=[5.0])
    backward_ms: Milliseconds = Field(description="time of its whole backward", examples=[10.0])
    weight_ms: Milliseconds = Field(
        default=0.0, description="the part of the backward that is the weight gradient; 0: it cannot be split off"
    )
    message_bytes: Sizes = Field(
        default=4096, description="bytes of an activation that a stage sends on, and of the gradient that comes back"
    )
    fixed_ms: float = Field(
        default=0.0,
        ge=0,
        lt=values.MOST_MS,
        description="the part of forward_ms and backward_ms that stays when tuning makes micro-batches smaller",
    )
    launch_ahead: Count = Field(default=1, description="tasks that it is given at a time; it does them in order")

    def of(self, key: Literal["forward_ms", "backward_ms", "weight_ms"], stage: int) -> float:
        """Return the time of a stage."""
        times: float | tuple[float, ...] = getattr(self, key)
        return times[stage] if isinstance(times, tuple) else times

    def bytes_from(self, stage: int) -> int:
        """Return the size of an activation that a stage sends on; the last one's, which has none, counts as held."""
        sizes = self.message_bytes
        return sizes[stage] if isinstance(sizes, tuple) else sizes

    @property
    def most_bytes(self) -> int:
        """The size of the largest message."""
        return max(self.message_bytes) if isinstance(self.message_bytes, tuple) else self.message_bytes
