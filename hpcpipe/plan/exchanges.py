"""In which order reduce-scatters and all-gathers share the network of a stage, the same on all of its replicas.

Each meets the other replicas, so if two of them took turns in different orders, both could wait for ever. The order is
that of use: gradients as a backward makes them final, then parameters as the next forward needs them.
"""

from collections.abc import Collection, Iterable, Sequence

from hpcpipe.plan.task import Kind, Task

EARLY_SHARE = 1 / 3
"""How much of the parameters is gathered in gaps between the sums of a backward.

With a backward of twice the forward's time this keeps the network busy and delays no step, whatever the network's
rate: where computing and communicating take equally long, the sums fill 3/4 of the backward and this the rest.
"""

BUCKETS_OF_A_STAGE = 16
LARGEST_BUCKET = 25_000_000
BUCKET_OF_A_REPLICA = 125_000
"""The bytes that take as long as a start-up, a replica: 0.05 to 0.15 MB in the times of all-reduces on 10 Gbit/s
Ethernet that DeAR's authors fitted for 4 to 64 of them (code of arXiv 2302.12445)."""


class Exchanges:
    """Lets what was asked for begin in its turn; step after step the turns are the same.

    Reduce-scatters have their turns and all-gathers have theirs. A reduce-scatter never waits for an all-gather; an
    all-gather begins where a reduce-scatter leaves room. So replicas whose timing differs may mix the two otherwise,
    but neither ever waits for what the other replica will not begin.

    Parameters
    ----------
    buckets
        The buckets that take turns, in the order in which their gradients become final; what others ask for begins at
        once.
    at_once
        How many are under way together: one alone leaves the network idle while its last message is on the way.
    early
        Those of the buckets that are gathered before the others, in this order; the others follow from the last to the
        first.
    """

    def __init__(self, buckets: Iterable[int], *, at_once: int, early: Collection[int] = ()) -> None:
        numbers = list(buckets)
        gathers = [*early, *(bucket for bucket in reversed(numbers) if bucket not in early)]
        self._sums = _Turns([Task(Kind.RS, bucket) for bucket in numbers])
        self._gathers = _Turns([Task(Kind.AG, bucket) for bucket in gathers])
        self._at_once = at_once

    def ask(self, task: Task) -> list[Task]:
        """Return what begins now, as this one may."""
        turns = self._turns_of(task)
        if turns is None:
            return [task]
        turns.asked.add(task)
        return self._begin()

    def end(self, task: Task) -> list[Task]:
        """Note that one is done and return what begins now."""
        turns = self._turns_of(task)
        if turns is None:
            return []
        turns.under_way -= 1
        return self._begin()

    def _turns_of(self, task: Task) -> "_Turns | None":
        return next((turns for turns in (self._sums, self._gathers) if task in turns.members), None)

    def _begin(self) -> list[Task]:
        begun = self._sums.begin(self._at_once)
        return begun + self._gathers.begin(self._at_once - self._sums.under_way)


class _Turns:
    """Tasks that begin in one order, round and round."""

    def __init__(self, order: Sequence[Task]) -> None:
        self._order = order
        self.members = frozenset(order)
        self._next = 0
        self.asked: set[Task] = set()
        self.under_way = 0

    def begin(self, at_once: int) -> list[Task]:
        """Return what begins now, so that no more than `at_once` are under way."""
        begun = []
        while self.under_way < at_once and (task := self._order[self._next]) in self.asked:
            self.asked.remove(task)
            self._next = (self._next + 1) % len(self._order)
            self.under_way += 1
            begun.append(task)
        return begun


def usual_bucket_bytes(stage_bytes: int, replicas: int) -> int:
    """Return how large a fusion bucket is where nobody says otherwise, from the bytes of a stage's gradients in fp32.

    Nothing hides the last bucket's sum and the first one's gather, and every bucket costs a start-up. So there are so
    many that what is bare is a small part, but none that starts longer than it travels, and none so large that
    start-ups matter no more. One replica exchanges nothing.
    """
    if replicas == 1:
        return LARGEST_BUCKET
    return min(LARGEST_BUCKET, max(BUCKET_OF_A_REPLICA * replicas, stage_bytes // BUCKETS_OF_A_STAGE))


def early_gathers(sizes: Sequence[float], share: float = EARLY_SHARE) -> list[int]:
    """Return the buckets to gather early: `share` of all bytes at most, spread evenly over the order.

    Spread, because the next forward runs while the others are gathered: it meets what is there already between what it
    waits for, and the last one to come leaves little to compute. `sizes` are the buckets' in the order in which their
    gradients become final.
    """
    found: list[int] = []
    passed = taken = 0.0
    for bucket, size in enumerate(sizes):
        passed += size
        if taken + size <= share * passed * (1 + 1e-9):
            found.append(bucket)
            taken += size
    return found
