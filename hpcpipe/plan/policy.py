"""The switch between today's frameworks and this one: wait for the next task of an order, or take what is ready.

Both policies consume the same hint and the same ready-set, so a comparison flips the policy and nothing else.
"""

from collections.abc import Sequence
from typing import Protocol

from hpcpipe.plan.hint import Hint, Order, communication_first
from hpcpipe.plan.ready import ReadySet
from hpcpipe.plan.task import Kind, Task

_OF_BUCKETS = (Kind.RS, Kind.UPDATE, Kind.AG, Kind.NORM)


class Policy(Protocol):
    """Chooses what runs next. `choose` is pure; `started` and `idle` advance the policy."""

    hint: Hint

    def choose(self, candidates: Sequence[Task], ready: ReadySet) -> Task | None:
        """Return the task to run, or None to wait.

        `candidates` are the best task of each lane that the caps let run, `ready` is all that is ready.
        """

    def started(self, task: Task) -> None:
        """Note that the task was dispatched."""

    def idle(self) -> None:
        """Note that nothing could be dispatched."""


class Ready:
    """Readiness first: of the ready tasks, the one that the hint ranks best. It never waits while work is ready."""

    def __init__(self, hint: Hint) -> None:
        self.hint = hint

    def choose(self, candidates: Sequence[Task], ready: ReadySet) -> Task | None:
        """Return the best candidate."""
        del ready
        return self.hint.pick(candidates) if candidates else None

    def started(self, task: Task) -> None:
        """Pass on to the hint."""
        self.hint.started(task)

    def idle(self) -> None:
        """Pass on to the hint."""
        self.hint.idle()


class Fixed:
    """Order first: wait for the next task of the order even when others are ready.

    The in-flight cap does not apply: an order bounds what is in flight by itself.
    """

    def __init__(self, order: Order) -> None:
        self.hint: Hint = order
        self._tasks: Sequence[Task] = order.tasks
        self._next = 0
        self._lists_all = any(task.kind is Kind.UPDATE for task in order.tasks)

    def choose(self, candidates: Sequence[Task], ready: ReadySet) -> Task | None:
        """Return the next task of the order if it is ready, else a bucket's task; after its end what it does not list.

        Reduce-scatters, all-gathers and norms start at once: they run beside the order's tasks.
        """
        if self._lists_all:
            others: Sequence[Task] = []
        else:
            others = [task for task in candidates if task.kind in _OF_BUCKETS]
            if (beside := communication_first(others)) is not None:
                return beside
        if self._next < len(self._tasks):
            task = self._tasks[self._next]
            if task in ready:
                return task
            candidates = others
        return self.hint.pick(candidates) if candidates else None

    def started(self, task: Task) -> None:
        """Move on in the order."""
        if not self._lists_all and task.kind in _OF_BUCKETS:
            return
        if self._next < len(self._tasks):
            assert task == self._tasks[self._next], f"{task} was started before {self._tasks[self._next]}"
            self._next += 1

    def idle(self) -> None:
        """Do nothing: an order remembers no waits."""


def make_policy(dispatch: str, hint: Hint) -> Policy:
    """Return the policy named by `[schedule].dispatch` over the hint.

    Raises
    ------
    ValueError
        Unknown dispatch, or `fixed` over a rule that is no order.
    """
    if dispatch == "ready":
        return Ready(hint)
    if dispatch == "fixed":
        if not isinstance(hint, Order):
            raise ValueError(f'dispatch = "fixed" needs an order; {hint.name!r} only ranks what is ready')
        return Fixed(hint)
    raise ValueError(f'unknown dispatch {dispatch!r}; known are "ready" and "fixed"')
