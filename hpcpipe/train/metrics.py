"""`metrics.jsonl`: one JSON object a step, each line whole, for scripts and plots."""

import json
import math
from pathlib import Path
from typing import NamedTuple, Protocol

METRICS = "metrics.jsonl"


class StepMetrics(NamedTuple):
    """What is known of a step on all ranks. `loss` is the mean over the global batch's tokens, whatever the layout.

    `grad_norm` is that of the whole gradient before clipping; `skipped`: whether the step changed no parameter.
    `eval_loss` is the mean over what is held out, with the parameters as the step has left them; None at most steps.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    step_ns: int
    hint: str
    k: int
    dispatch: str
    loss_scale: float = 1.0
    skipped: bool = False
    eval_loss: float | None = None
    microbatch_size: int = 1


class MetricsSink(Protocol):
    """Where every step's metrics go."""

    def write(self, metrics: StepMetrics) -> None:
        """Take one step."""

    def close(self) -> None:
        """End."""


class MetricsFile:
    """Appends lines; a line is written by one call, so a killed run leaves no half of one behind."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, metrics: StepMetrics) -> None:
        """Append one step."""
        known = {key: _number(value) for key, value in metrics._asdict().items()}
        if metrics.eval_loss is None:
            del known["eval_loss"]
        self._file.write(json.dumps(known) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _number(value: object) -> object:
    """Return null for a loss that is no number, which JSON cannot say."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
