"""`metrics.jsonl`: one JSON object a step, each line whole, for scripts and plots."""

import json
from pathlib import Path
from typing import NamedTuple


class StepMetrics(NamedTuple):
    """What is known of a step on all ranks. `loss` is the mean over the global batch's tokens, whatever the layout."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    step_ns: int
    hint: str
    k: int
    dispatch: str


class MetricsFile:
    """Appends lines; a line is written by one call, so a killed run leaves no half of one behind."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, metrics: StepMetrics) -> None:
        """Append one step."""
        self._file.write(json.dumps(metrics._asdict()) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
