"""The round rule `bf`: in each round one backward if any is ready, then one forward if any is ready.

Source: RRFP (arXiv 2605.18750), section 5 and appendix A. It is a rule over what is ready, not an order.
"""

from collections.abc import Sequence

from hpcpipe.plan.hint import communication_first
from hpcpipe.plan.task import Kind, Task


class BackwardForwardRounds:
    """The paper's default hint.

    Forwards take the smallest chunk, backwards the largest; among equals the smallest micro-batch goes first.
    """

    name = "bf"

    def __init__(self, *, microbatches: int, chunks: int = 1) -> None:
        self._microbatches = microbatches
        self._chunks = chunks
        self._turn = Kind.B

    def key(self, task: Task) -> int:
        """Return the task's rank within its direction; forwards and backwards share one scale only for the log."""
        chunk = self._chunks - 1 - task.chunk if task.kind is Kind.B else task.chunk
        return chunk * self._microbatches + task.microbatch

    def pick(self, tops: Sequence[Task]) -> Task:
        """Return the task of the current half round; the other half's where this one has nothing."""
        if (task := communication_first(tops)) is not None:
            return task
        mine = [t for t in tops if t.kind is self._turn]
        return min(mine or tops, key=lambda t: (t.kind is Kind.UPDATE, self.key(t)))

    def started(self, task: Task) -> None:
        """Move to the other half of the round after a forward or a backward."""
        if task.kind is Kind.B:
            self._turn = Kind.F
        elif task.kind is Kind.F:
            self._turn = Kind.B

    def idle(self) -> None:
        """Start a new round: the rank found neither a backward nor a forward."""
        self._turn = Kind.B
