"""A stage that computes nothing: its tasks take the time they are given on an emulated device.

What follows a task in the chain gets real bytes. It needs no array library.
"""

from collections.abc import Callable

from hpcpipe.device import Emulated, Running
from hpcpipe.plan import Exchanges, Kind, Placement, Task


class SyntheticStage:
    """All chunks of one rank.

    Parameters
    ----------
    duration
        (step, task) -> ns.
    message_bytes
        What an F or B gives to the task that follows it.
    """

    has_data = False

    def __init__(
        self,
        device: Emulated,
        *,
        placement: Placement,
        stage: int,
        duration: Callable[[int, Task], int],
        message_bytes: int,
    ) -> None:
        self._device = device
        self._duration = duration
        self._output = memoryview(bytes(message_bytes))
        virtual = [placement.virtual(stage, chunk) for chunk in range(placement.chunks)]
        self._ends = {(Kind.F, chunk) for chunk, v in enumerate(virtual) if v == placement.virtual_stages - 1}
        self._ends |= {(Kind.B, chunk) for chunk, v in enumerate(virtual) if v == 0}
        self._ends |= {(Kind.W, chunk) for chunk in range(placement.chunks)}

    def load(self, step: int) -> None:
        """Ask for a first time: who decides on a step's admission does it now, not within a task."""
        self._duration(step, Task(Kind.F, 0))

    def start(self, step: int, task: Task, received: memoryview | None) -> Running:
        """Start a task on the device."""
        del received
        output = None if (task.kind, task.chunk) in self._ends else self._output
        return self._device.run(self._duration(step, task), output)

    def loss(self) -> float:
        """Return nothing that could be taken for a loss."""
        return 0.0


class NoBuckets:
    """The buckets of a stage without parameters."""

    square_norm = 0.0
    verdict = None
    chunks: tuple[frozenset[int], ...] = ()
    tied: tuple[int, ...] = ()

    exchanges = Exchanges((), at_once=1)

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
