"""Metrics as TensorBoard files, for those who look at runs there; rank 0 writes them.

torch.utils.tensorboard and the package tensorboard are imported here only, when a job asks for it.
"""

import math
from pathlib import Path

from hpcpipe.train.metrics import StepMetrics

_SHOWN = ("loss", "grad_norm", "lr", "loss_scale")


class TensorBoard:
    """One event file in a folder, with the scalars of every step."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder))

    def write(self, metrics: StepMetrics) -> None:
        """Add the scalars of a step; what is no number is left out, as TensorBoard draws it at the wrong place."""
        for name in _SHOWN:
            value = getattr(metrics, name)
            if math.isfinite(value):
                self._writer.add_scalar(name, value, metrics.step)
        seconds = metrics.step_ns * 1e-9
        self._writer.add_scalar("step_s", seconds, metrics.step)
        if metrics.tokens:
            self._writer.add_scalar("tokens_per_s", metrics.tokens / seconds, metrics.step)

    def close(self) -> None:
        """Write what is left and close the file; may be called twice."""
        self._writer.close()
