"""What a job means on its ranks before any of them starts: layers, parameters and caps of every stage.

The dry run prints it and the trainer builds from it, so they cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcpipe.job import Job
from hpcpipe.job.schema import Gpt, Text
from hpcpipe.models import Layer, build, cut, gpt_layers
from hpcpipe.plan import ORDERS, Limits, Placement, Schedule, check_order, in_flight_caps


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a job.

    `bounds` is how many micro-batches each stage can have in flight: its cap, or the peak of a fixed order.
    `boundary_bytes` is the size of the activation that crosses between stages.
    """

    layers: Sequence[Layer]
    stages: Sequence[range]
    bounds: tuple[int, ...]
    boundary_bytes: int

    @classmethod
    def of(cls, job: Job) -> "Layout":
        """Lay out a checked job."""
        assert isinstance(job.model, Gpt)
        assert isinstance(job.data, Text)
        model, data, stages, microbatches = job.model, job.data, job.parallel.pipeline, job.batch.microbatches
        layers = gpt_layers(
            layers=model.layers,
            dim=model.dim,
            heads=model.heads,
            context=model.context,
            vocab_size=model.vocab_size,
            dropout=model.dropout,
            seq_len=data.seq_len,
        )
        if job.schedule.dispatch == "fixed":
            order = ORDERS[job.schedule.hint]
            orders = [order(stage=s, stages=stages, microbatches=microbatches) for s in range(stages)]
            peaks = check_order(orders, placement=Placement(stages), microbatches=microbatches, split=False)
            bounds = peaks.in_flight
        else:
            bounds = in_flight_caps(job.schedule.in_flight, stages=stages, microbatches=microbatches)
        return cls(
            layers=layers,
            stages=cut(layers, stages, job.parallel.split),
            bounds=bounds,
            boundary_bytes=4 * job.batch.microbatch_size * data.seq_len * model.dim,
        )

    def num_parameters(self, stage: int) -> int:
        """Return how many parameters a stage has; counts without giving them memory."""
        with torch.device("meta"):
            modules = build(self.layers, self.stages[stage], seed=0)
        return sum(p.numel() for module in modules for p in module.parameters())

    def schedule(self, job: Job) -> Schedule:
        """Return the schedule of every step; a fixed order needs no caps, it bounds itself."""
        fixed = job.schedule.dispatch == "fixed"
        return Schedule(
            hint=job.schedule.hint,
            dispatch=job.schedule.dispatch,
            placement=Placement(job.parallel.pipeline),
            microbatches=job.batch.microbatches,
            limits=tuple(Limits() if fixed else Limits(in_flight=bound) for bound in self.bounds),
        )
