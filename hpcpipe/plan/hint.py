"""What a hint is: a ranking of a stage's tasks, either a total order or a small rule over what is ready.

A hint never blocks work; that is the policy's decision (policy.py).
"""

from collections.abc import Sequence
from typing import Protocol

from hpcpipe.plan.task import Kind, Task


class Hint(Protocol):
    """Ranks ready tasks. `pick` is pure; `started` and `idle` advance what a rule remembers."""

    name: str

    def key(self, task: Task) -> int:
        """Return the task's rank in its lane, smaller runs first."""

    def pick(self, tops: Sequence[Task]) -> Task:
        """Return the best of the lanes' first tasks (never empty)."""

    def started(self, task: Task) -> None:
        """Note that the task was dispatched."""

    def idle(self) -> None:
        """Note that nothing could be dispatched."""


def communication_first(tops: Sequence[Task]) -> Task | None:
    """Return a reduce-scatter, all-gather or norm that can be started: starting one takes no time from the device."""
    beside = [task for task in tops if task.kind in (Kind.RS, Kind.AG, Kind.NORM)]
    return min(beside, key=lambda task: (task.kind, bucket_rank(task)), default=None)


def bucket_rank(task: Task) -> int:
    """Return the rank of a bucket's task in its kind: gradients of the last layers first, parameters of the first."""
    return -task.microbatch if task.kind in (Kind.UPDATE, Kind.AG) else task.microbatch


class Order:
    """A hint that is a total order of the stage's forwards and backwards, and of its bucket tasks where it lists them.

    `tasks` is the order in which they can be run one after the other. `ranks`, the same tasks, is how they are ranked
    where several are ready, if another ranking is better then; who follows the order does not look at it.
    """

    def __init__(self, name: str, tasks: Sequence[Task], *, ranks: Sequence[Task] | None = None) -> None:
        self.name = name
        self.tasks = tuple(tasks)
        self._index = {task: index for index, task in enumerate(self.tasks if ranks is None else ranks)}

    def key(self, task: Task) -> int:
        """Return the position in the ranking; bucket tasks that it does not list are ranked among their kind only."""
        index = self._index.get(task)
        if index is not None:
            return index
        return len(self.tasks) + task.microbatch if task.kind is Kind.W else bucket_rank(task)

    def pick(self, tops: Sequence[Task]) -> Task:
        """Return the task that stands first in the order; updates come last, they end nothing that others wait for."""
        return communication_first(tops) or min(tops, key=lambda task: (task.kind is Kind.UPDATE, self.key(task)))

    def started(self, task: Task) -> None:
        """Do nothing: an order remembers nothing."""

    def idle(self) -> None:
        """Do nothing: an order remembers nothing."""
