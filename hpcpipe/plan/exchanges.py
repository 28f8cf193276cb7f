"""In which order reduce-scatters and all-gathers share the network of a stage, the same on all of its replicas.

Each meets the other replicas, so if two of them took turns in different orders, both could wait for ever. The order is
that of use: gradients as a backward makes them final, then parameters as the next forward needs them.
"""

from collections.abc import Iterable

from hpcpipe.plan.task import Kind, Task


class Exchanges:
    """Lets what was asked for begin in its turn; step after step the turns are the same.

    Parameters
    ----------
    buckets
        The buckets that take turns, in the order in which their gradients become final; what others ask for begins at
        once.
    at_once
        How many are under way together: one alone leaves the network idle while its last message is on the way.
    """

    def __init__(self, buckets: Iterable[int], *, at_once: int) -> None:
        numbers = list(buckets)
        self._turns = [Task(Kind.RS, bucket) for bucket in numbers]
        self._turns += [Task(Kind.AG, bucket) for bucket in reversed(numbers)]
        self._taking = set(self._turns)
        self._next = 0
        self._room = at_once
        self._asked: set[Task] = set()

    def ask(self, task: Task) -> list[Task]:
        """Return what begins now, as this one may."""
        if task not in self._taking:
            return [task]
        self._asked.add(task)
        return self._begin()

    def end(self, task: Task) -> list[Task]:
        """Note that one is done and return what begins now."""
        if task not in self._taking:
            return []
        self._room += 1
        return self._begin()

    def _begin(self) -> list[Task]:
        begun = []
        while self._room and (task := self._turns[self._next]) in self._asked:
            self._asked.remove(task)
            self._next = (self._next + 1) % len(self._turns)
            self._room -= 1
            begun.append(task)
        return begun
