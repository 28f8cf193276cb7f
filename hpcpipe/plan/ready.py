"""The ready-set: the tasks of one stage that could run now, in lanes by kind and chunk.

Each lane is a heap by the hint's key, so adding and taking cost O(log n) and looking at all lanes costs O(lanes).
"""

from collections.abc import Container, Iterator
from heapq import heappop, heappush

from hpcpipe.plan.hint import Hint
from hpcpipe.plan.task import Kind, Task


class ReadySet:
    """Ready tasks, best first in every lane."""

    def __init__(self, hint: Hint) -> None:
        self._hint = hint
        self._lanes: dict[tuple[Kind, int], list[tuple[int, Task]]] = {}
        self._members: set[Task] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._members)

    def __contains__(self, task: Task) -> bool:
        return task in self._members

    def add(self, task: Task) -> None:
        """Add a task that became ready; a task that is already in is the programmer's error."""
        assert task not in self._members, f"{task} became ready twice"
        self._members.add(task)
        heappush(self._lanes.setdefault((task.kind, task.chunk), []), (self._hint.key(task), task))

    def remove(self, task: Task) -> None:
        """Take a task out; lanes drop it when it surfaces, so this is O(log n) amortised for any member."""
        self._members.remove(task)

    def tops(self, closed: Container[int] = ()) -> list[Task]:
        """Return the best task of every lane, without the forwards of chunks whose cap is closed."""
        found = []
        for (kind, chunk), lane in self._lanes.items():
            while lane and lane[0][1] not in self._members:
                heappop(lane)
            if lane and (kind is not Kind.F or chunk not in closed):
                found.append(lane[0][1])
        return found
