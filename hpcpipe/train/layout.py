"""What a job means on its ranks before any of them starts: layers, parameters, schedule and slots of every stage.

The dry run prints it and the trainer builds from it, so they cannot disagree. A synthetic model needs no torch here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcpipe.job import Job
from hpcpipe.job.device import Emulated
from hpcpipe.job.planned import needs_sizes, schedule_of
from hpcpipe.plan import Schedule
from hpcpipe.plan.slots import Held, Source, most_held, sources
from hpcpipe.simulate.costs import Machine, emulated_costs

if TYPE_CHECKING:
    from hpcpipe.models import Layer


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages of a job.

    `pieces` are the layers of every stage by chunk; empty where the model is synthetic. `slots` is the number of
    receive buffers of an edge that the job asks for, None for as many as may be needed. `boundary_bytes` is the size of
    the activation that crosses between virtual stages. `held` is what each chunk of every stage holds at most where a
    recorded order decides it. `recompute` is as in the job. `notices` are what the user should know of the model.
    """

    layers: "Sequence[Layer]"
    pieces: Sequence[Sequence[range]]
    schedule: Schedule
    slots: int | None
    boundary_bytes: int
    held: Sequence[Sequence[Held]] | None = None
    recompute: str | Sequence[tuple[int, int]] = "none"
    notices: Sequence[str] = ()

    @classmethod
    def of(cls, job: Job) -> "Layout":
        """Lay out a checked job."""
        schedule = schedule_of(job, activation_bytes=_activation_bytes(job))
        slots = job.comm.slots if isinstance(job.comm.slots, int) else None
        if isinstance(job.device, Emulated):
            nothing = [()] * schedule.placement.stages
            return cls((), nothing, schedule, slots, job.device.most_bytes)
        from hpcpipe.models import cut
        from hpcpipe.train.model import boundary_bytes, model_of

        model, placement = model_of(job), schedule.placement
        chain = cut(model.layers, placement, job.parallel.split)
        return cls(
            layers=model.layers,
            pieces=[
                [chain[placement.virtual(stage, chunk)] for chunk in range(placement.chunks)]
                for stage in range(placement.stages)
            ],
            schedule=schedule,
            slots=slots,
            boundary_bytes=boundary_bytes(job, model),
            recompute=model.recompute,
            notices=[*model.notices, *_notices(job)],
        )

    def recomputed(self, piece: range) -> list[range]:
        """Return the ranges of positions in a piece whose activations are computed again."""
        from hpcpipe.models import recomputed

        return recomputed(self.layers, piece, self.recompute)

    @property
    def bounds(self) -> tuple[int, ...]:
        """How many forwards of a chunk each stage can have in flight: its cap, or what a fixed order has."""
        return tuple(self._bound(stage) for stage in range(self.schedule.placement.stages))

    def num_parameters(self, stage: int) -> int:
        """Return how many parameters a stage has; counts without giving them memory."""
        if not self.pieces[stage]:
            return 0
        from hpcpipe.models import outline

        modules = [module for piece in self.pieces[stage] for module in outline(self.layers, piece)]
        return sum(p.numel() for module in modules for p in module.parameters())

    def sources(self, stage: int) -> tuple[Source, ...]:
        """Return where a stage's messages come from, with the slots that they get."""
        found = sources(self.schedule, stage, held=self.held)
        return found if self.slots is None else tuple(source._replace(slots=self.slots) for source in found)

    def _bound(self, stage: int) -> int:
        known = most_held(self.schedule, stage) if self.held is None else self.held[stage]
        chunks = sum(held.in_flight for held in known)
        together = None if self.held is not None else self.schedule.limits[stage].in_flight
        return chunks if together is None else min(chunks, together)


def problem_with_caps(job: Job) -> str:
    """Return what is wrong with caps that are given in bytes, which only the model's sizes tell, or nothing."""
    try:
        schedule_of(job, activation_bytes=_activation_bytes(job))
    except ValueError as error:
        return f"[schedule] {error}"
    return ""


def _notices(job: Job) -> list[str]:
    """Return what was chosen for the user and is not plain from the job."""
    sizes, chunks = job.parallel, job.chunks
    if sizes.chunks != "auto" or sizes.pipeline > 1 or sizes.data == 1 or chunks == 1:
        return []
    return [
        f"a replica of one stage is cut into {chunks} chunks, so that what replicas exchange of one hides behind the "
        "work on others; [parallel] chunks says another number"
    ]


def _activation_bytes(job: Job) -> Sequence[float] | None:
    """Return what one micro-batch stashes on each stage, where a cap is given in bytes."""
    if not needs_sizes(job):
        return None
    if isinstance(job.device, Emulated):
        return emulated_costs(job).activation_bytes
    from hpcpipe.train.sizes import analytic_costs_of

    return analytic_costs_of(job, Machine()).activation_bytes
