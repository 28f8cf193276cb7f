"""Rules over what is ready, no orders: in rounds of one backward and one forward, or one direction always first.

Source: RRFP (arXiv 2605.18750), section 5 and appendix A.
"""

from collections.abc import Sequence

from hpcpipe.plan.hint import bucket_rank, communication_first
from hpcpipe.plan.task import Kind, Task


class ReadyRule:
    """A rule of the paper's family; `bf` is its default hint, `bfw` the same over a split backward.

    Forwards take the smallest chunk, backwards the largest; among equals the smallest micro-batch goes first. Weight
    gradients fill in, oldest first, where neither is ready.

    Parameters
    ----------
    first
        The direction that begins a round.
    rounds
        Whether the other direction has its turn next; otherwise `first` goes first always.
    """

    def __init__(
        self, name: str, *, microbatches: int, chunks: int = 1, first: Kind = Kind.B, rounds: bool = True
    ) -> None:
        self.name = name
        self._microbatches = microbatches
        self._chunks = chunks
        self.first = first
        self.rounds = rounds
        self._turn = first

    def key(self, task: Task) -> int:
        """Return the task's rank within its kind; the kinds share one scale only for the log."""
        if task.kind not in (Kind.F, Kind.B, Kind.W):
            return bucket_rank(task)
        late_first = self._chunks - 1 - task.chunk
        if task.kind is Kind.W:
            return task.microbatch * self._chunks + late_first
        return (late_first if task.kind is Kind.B else task.chunk) * self._microbatches + task.microbatch

    def pick(self, tops: Sequence[Task]) -> Task:
        """Return the task of the current half round, else the other half's, else a weight gradient, else an update."""
        if (task := communication_first(tops)) is not None:
            return task
        return min(tops, key=lambda t: (t.kind is Kind.UPDATE, t.kind is Kind.W, t.kind is not self._turn, self.key(t)))

    def started(self, task: Task) -> None:
        """Move to the other half of the round after a forward or a backward; a weight gradient ends the round."""
        if task.kind is Kind.W or not self.rounds:
            self._turn = self.first
        elif task.kind in (Kind.F, Kind.B):
            self._turn = Kind.F if task.kind is Kind.B else Kind.B

    def idle(self) -> None:
        """Start a new round: the rank found neither a backward nor a forward."""
        self._turn = self.first
