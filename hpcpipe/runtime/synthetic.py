"""A stage that computes nothing: its tasks take the time they are given on an emulated device.

What follows a task in the chain gets real bytes. It needs no array library.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hpcpipe.device import Emulated, Running
from hpcpipe.plan import Kind, Placement, Task

Meet = Callable[[int, Task], Callable[[], bool]]
"""Starts a collective for a task of a step; what it returns says whether that is done."""


class Met:
    """A task that is done when its time has come on all tensor-parallel slices."""

    def __init__(self, running: Running, meet: Callable[[], Callable[[], bool]]) -> None:
        self._running = running
        self._meet = meet
        self._met: Callable[[], bool] | None = None

    @property
    def due(self) -> int | None:
        """When this slice is done; from then on nobody knows."""
        return self._running.due if self._met is None else None

    @property
    def again(self) -> Sequence[tuple[int, int]]:
        """That nothing was computed again."""
        return self._running.again

    def done(self) -> bool:
        """Return whether all slices are done."""
        if self._met is None:
            if not self._running.done():
                return False
            self._met = self._meet()
        return self._met()

    def result(self) -> Any:
        """Return the task's output."""
        return self._running.result()


class SyntheticStage:
    """All chunks of one rank.

    Parameters
    ----------
    duration
        (step, task) -> ns.
    message_bytes
        Step -> the size of what an F or B gives to the task that follows it.
    meet
        Where the stage is cut into tensor slices: the collective that every F and B ends with.
    """

    has_data = False

    def __init__(
        self,
        device: Emulated,
        *,
        placement: Placement,
        stage: int,
        duration: Callable[[int, Task], int],
        message_bytes: Callable[[int], int],
        meet: Meet | None = None,
    ) -> None:
        self._meet = meet
        self.device = device
        self._duration = duration
        self._message_bytes = message_bytes
        self._output = memoryview(b"")
        virtual = [placement.virtual(stage, chunk) for chunk in range(placement.chunks)]
        self._ends = {(Kind.F, chunk) for chunk, v in enumerate(virtual) if v == placement.virtual_stages - 1}
        self._ends |= {(Kind.B, chunk) for chunk, v in enumerate(virtual) if v == 0}
        self._ends |= {(Kind.W, chunk) for chunk in range(placement.chunks)}

    def load(self, step: int) -> None:
        """Ask for a first time: who decides on a step's admission does it now, not within a task."""
        self._duration(step, Task(Kind.F, 0))
        size = self._message_bytes(step)
        if self._output.nbytes != size:
            self._output = memoryview(bytes(size))

    def start(self, step: int, task: Task, received: memoryview | None) -> Running:
        """Start a task on the device."""
        del received
        output = None if (task.kind, task.chunk) in self._ends else self._output
        running = self.device.run(self._duration(step, task), output)
        if (meet := self._meet) is None or task.kind is Kind.W:
            return running
        return Met(running, lambda: meet(step, task))

    def loss(self) -> float:
        """Return nothing that could be taken for a loss."""
        return 0.0


class NoBuckets:
    """The buckets of a stage without parameters."""

    square_norm = 0.0
    verdict = None
    chunks: tuple[frozenset[int], ...] = ()
    tied: tuple[int, ...] = ()

    def __len__(self) -> int:
        return 0

    def start(self, task: Task) -> None:
        """Refuse: there is none."""
        raise AssertionError(f"{task} of a stage without buckets")

    def test(self) -> list[Task]:
        """Return that nothing is done."""
        return []

    def update(self, bucket: int, step: int) -> None:
        """Refuse: there is none."""
        raise AssertionError(f"update of bucket {bucket} of a stage without buckets, step {step}")

    def num_bytes(self, task: Task) -> int:
        """Return that a bucket that is not there has no bytes."""
        del task
        return 0

    def free(self) -> None:
        """Do nothing: there is nothing to free."""
