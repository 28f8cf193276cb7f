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

    in_order = False
    times = None

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
    bytes_from
        (step, stage) -> bytes of an activation that the stage sends on; the gradient of it has as many.
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
        bytes_from: Callable[[int, int], int],
        meet: Meet | None = None,
    ) -> None:
        self._meet = meet
        self.device = device
        self._duration = duration
        self._bytes_from = bytes_from
        self._sources: dict[tuple[Kind, int], int] = {}
        for chunk in range(placement.chunks):
            virtual = placement.virtual(stage, chunk)
            if virtual < placement.virtual_stages - 1:
                self._sources[Kind.F, chunk] = stage
            if virtual > 0:
                self._sources[Kind.B, chunk] = placement.owner(virtual - 1)[0]
        self._outputs = dict.fromkeys(self._sources, memoryview(b""))

    def load(self, step: int) -> None:
        """Ask for a first time: who decides on a step's admission does it now, not within a task."""
        self._duration(step, Task(Kind.F, 0))
        for task, stage in self._sources.items():
            size = self._bytes_from(step, stage)
            if self._outputs[task].nbytes != size:
                self._outputs[task] = memoryview(bytes(size))

    def start(self, step: int, task: Task, received: memoryview | None) -> Running:
        """Start a task on the device."""
        del received
        output = self._outputs.get((task.kind, task.chunk))
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
    early: tuple[int, ...] = ()

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
