"""A schedule as data: everything that decides in which order a step's tasks run, for all stages.

The runtime and the simulator make their `StagePlan`s from it, so they cannot disagree.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcpipe.plan.flight import NO_LIMITS, Limits
from hpcpipe.plan.hint import Hint, Order
from hpcpipe.plan.hints import make_hint
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.policy import Fixed, Policy, make_policy
from hpcpipe.plan.profile import Profile
from hpcpipe.plan.stage import StagePlan
from hpcpipe.plan.task import Kind, Task

FROM_FILE = "file:"
"""How the name of a hint begins whose orders somebody else wrote down."""

RECORDED = "recorded"
"""The name of an order that a run has left in its log."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step's schedule.

    Parameters
    ----------
    hint, dispatch
        Names as in `[schedule]` of a job file. A hint that begins with "file:" needs `orders`.
    limits
        The caps of every stage, in chunk forwards.
    split, ordered
        As in `StagePlan`.
    k
        The group of kFkB; None for other hints.
    orders
        The order of every stage, from a table that was read (hints/table.py); None where the hint's name makes them.
    profile
        The measured times from which `critical` makes its orders; other hints need none.

    Raises
    ------
    ValueError
        `orders` without a hint from a file or the other way round, orders of another size, or a fixed order of weight
        gradients that ordered accumulation never lets run.
    """

    hint: str
    dispatch: str
    placement: Placement
    microbatches: int
    limits: tuple[Limits, ...]
    split: bool = False
    ordered: bool = True
    k: int | None = None
    orders: tuple[tuple[Task, ...], ...] | None = None
    profile: Profile | None = None

    def __post_init__(self) -> None:
        """Refuse orders that do not belong to the rest."""
        if self.hint.startswith(FROM_FILE) != (self.orders is not None):
            raise ValueError(
                f"hint {self.hint!r} " + ("makes its own orders" if self.orders else "needs the orders that it names")
            )
        if self.orders is None:
            return
        tasks = (3 if self.split else 2) * self.microbatches * self.placement.chunks
        sizes = [len(order) for order in self.orders]
        if sizes != [tasks] * self.placement.stages:
            raise ValueError(
                f"hint {self.hint!r} has {sizes} tasks on its stages; {self.placement.stages} stages of "
                f"{self.placement.chunks} chunks with {self.microbatches} micro-batches have {tasks} each"
            )
        if self.dispatch == "fixed" and self.ordered:
            _check_weights_in_order(self.hint, self.orders)

    def stage_plan(
        self,
        stage: int,
        *,
        buckets: int | Sequence[Collection[int]] = 0,
        replicated: bool = False,
        tied: Collection[int] = (),
        gathering: Collection[int] = (),
        norm: bool = False,
        phased: bool = False,
        eager: Collection[int] = (),
        recorded: Sequence[Task] | None = None,
    ) -> StagePlan:
        """Return the plan of a new step on one stage.

        With a `recorded` order of all its tasks it runs exactly so: neither hint nor caps have a say then.
        """
        policy: Policy = Fixed(Order(RECORDED, recorded or ()))
        if recorded is None:
            policy = make_policy(self.dispatch, self._hint(stage))
        return StagePlan(
            placement=self.placement,
            stage=stage,
            microbatches=self.microbatches,
            policy=policy,
            limits=self.limits[stage] if recorded is None else NO_LIMITS,
            split=self.split,
            ordered=self.ordered,
            buckets=buckets,
            replicated=replicated,
            tied=tied,
            gathering=gathering,
            norm=norm,
            phased=phased,
            eager=eager if recorded is None else (),
        )

    def order(self, stage: int) -> tuple[Task, ...]:
        """Return the order of a stage; only where the hint is one."""
        hint = self._hint(stage)
        assert isinstance(hint, Order), f"{self.hint} is no order"
        return hint.tasks

    def _hint(self, stage: int) -> Hint:
        if self.orders is not None:
            return Order(self.hint, self.orders[stage])
        return make_hint(
            self.hint,
            stage=stage,
            stages=self.placement.stages,
            microbatches=self.microbatches,
            k=self.k,
            chunks=self.placement.chunks,
            profile=self.profile,
        )


def _check_weights_in_order(hint: str, orders: Sequence[Sequence[Task]]) -> None:
    """Check that each chunk's W go up; ordered accumulation lets none run before the one admitted before it."""
    for stage, order in enumerate(orders):
        by_chunk: dict[int, list[Task]] = {}
        for task in order:
            if task.kind is Kind.W:
                by_chunk.setdefault(task.chunk, []).append(task)
        for weights in by_chunk.values():
            for before, after in pairwise(weights):
                if after < before:
                    raise ValueError(
                        f'hint {hint!r} runs {before} before {after} on stage {stage}, which accumulate = "ordered" '
                        'never lets run so: use accumulate = "arrival", dispatch = "ready", or another order of W'
                    )
