"""What a run does about a step whose gradient is not finite: leave it out or end, on all ranks alike.

All ranks have the verdict (clip.py) before any of them updates, so they all decide the same without a message.
"""

from typing import TYPE_CHECKING

from hpcpipe.job import Job
from hpcpipe.runtime import World
from hpcpipe.train.rank import Rank

if TYPE_CHECKING:
    from hpcpipe.train.layout import Layout


class NonFiniteGuard:
    """Looks at every step's verdict; `reason` says why the run has to end, `skipped` holds the steps left out."""

    def __init__(self, job: Job, layout: "Layout", *, world: World, rank: Rank) -> None:
        self._job, self._layout, self._world, self._rank = job, layout, world, rank
        self._in_a_row = 0
        self.skipped: set[int] = set()
        self.reason = ""
        self.news = ""
        """What happened to the step looked at last, for people; empty if nothing."""

    def look(self, step: int) -> bool:
        """Judge a step that has been computed (collective); return whether the run goes on.

        Where an overflow is no surprise, because the loss scale is looked for, nobody asks where it arose until it has
        happened too often.
        """
        verdict, self.news = self._rank.buckets.verdict, ""
        if verdict is None or verdict.finite:
            self._in_a_row = 0
            return True
        self._in_a_row += 1
        scaled, most = self._job.precision.dynamic_scale, self._job.optimizer.max_skips
        skips = (scaled or self._job.optimizer.nonfinite == "skip") and self._in_a_row <= most
        if skips:
            self.skipped.add(step)
        if skips and scaled:
            scale = self._rank.scale.value
            self.news = (
                f"step {step}: the gradient overflowed and the step is left out; the loss scale is {scale:g} now"
            )
            return True
        where = self._find(step)
        what = f"step {step}: the gradient is not finite; {where}"
        if skips:
            self.news = f"{what}; the step is left out ({self._in_a_row} of at most {most} in a row)"
            return True
        often = f" (and so were the {self._in_a_row - 1} steps before it)" if self._in_a_row > 1 else ""
        self.reason = f"step {step}: the gradient is not finite{often}; {where}; no parameter was changed by it"
        return False

    def _find(self, step: int) -> str:
        """Say where the first NaN or infinity arose (collective)."""
        from hpcpipe.train.nonfinite import Finding, find_nonfinite

        self._rank.engine.gather()
        self._world.barrier()  # who still is in the step would take messages of its repetition for its own
        mine = find_nonfinite(self._rank, self._layout, step)
        here = f"rank {self._world.rank} ({self._rank.place}) on {self._world.host}"
        findings = [(Finding(*found), where) for found, where in self._world.collect([mine, here]) if found is not None]
        if not findings:
            return "the step computed again is finite, so sums of gradients overflowed, or memory or a processor failed"
        first, where = min(findings)
        return f"{first}, on {where}"
