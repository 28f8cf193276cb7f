"""A schedule as data: everything that decides in which order a step's tasks run, for all stages.

The runtime and the simulator make their `StagePlan`s from it, so they cannot disagree.
"""

from dataclasses import dataclass

from hpcpipe.plan.flight import Limits
from hpcpipe.plan.hints import make_hint
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.policy import make_policy
from hpcpipe.plan.stage import StagePlan


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step's schedule.

    Parameters
    ----------
    hint, dispatch
        Names as in `[schedule]` of a job file.
    limits
        The caps of every stage, in chunk forwards.
    split, ordered
        As in `StagePlan`.
    k
        The group of kFkB; None for other hints.
    """

    hint: str
    dispatch: str
    placement: Placement
    microbatches: int
    limits: tuple[Limits, ...]
    split: bool = False
    ordered: bool = True
    k: int | None = None

    def stage_plan(self, stage: int, *, buckets: int = 0, replicated: bool = False) -> StagePlan:
        """Return the plan of a new step on one stage."""
        hint = make_hint(
            self.hint,
            stage=stage,
            stages=self.placement.stages,
            microbatches=self.microbatches,
            k=self.k,
            chunks=self.placement.chunks,
        )
        return StagePlan(
            placement=self.placement,
            stage=stage,
            microbatches=self.microbatches,
            policy=make_policy(self.dispatch, hint),
            limits=self.limits[stage],
            split=self.split,
            ordered=self.ordered,
            buckets=buckets,
            replicated=replicated,
        )
