"""What surrounds a stage on a GPU: its micro-batches are copied there, its buckets are updated behind its tasks.

It knows no model and no schedule.
"""

from typing import TYPE_CHECKING, Any

from hpcpipe.data import Counted
from hpcpipe.runtime.engine import Buckets
from hpcpipe.runtime.structure import map_tensors

if TYPE_CHECKING:
    from hpcpipe.device.cuda import Cuda, Launched
    from hpcpipe.runtime.stage import Batches


class UploadedBatches:
    """Micro-batches on the GPU, copied when their task is given to it."""

    def __init__(self, batches: "Batches", device: "Cuda") -> None:
        self._batches = batches
        self._device = device

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready."""
        self._batches.load(step)

    def inputs(self, microbatch: int) -> Any:
        """Return the model's input."""
        return map_tensors(self._batches.inputs(microbatch), self._device.upload)

    def targets(self, microbatch: int) -> Any:
        """Return what the loss compares with."""
        targets = self._batches.targets(microbatch)
        if isinstance(targets, Counted):
            return Counted(map_tensors(targets.targets, self._device.upload), targets.total)
        return map_tensors(targets, self._device.upload)


class LaunchedBuckets:
    """Buckets whose updates are given to the GPU as tasks are, so that nobody waits for them on the host."""

    def __init__(self, buckets: Buckets, device: "Cuda") -> None:
        self._buckets = buckets
        self._device = device
        self.start, self.test, self.num_bytes = buckets.start, buckets.test, buckets.num_bytes

    def update(self, bucket: int, step: int) -> "Launched":
        """Give the update of a bucket's parameters to the GPU."""
        return self._device.launch(f"UPDATE{bucket} step {step}", lambda: self._buckets.update(bucket, step))
