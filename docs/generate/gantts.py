"""The pictures of the concept pages: small pipelines on an emulated device, simulated and drawn by hpcpipe itself."""

from pathlib import Path
from typing import Any

import hpcpipe

JOB = """\
[job]
name = "example"
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
weight_ms = 1
message_bytes = 1000000
[parallel]
pipeline = 4
[batch]
microbatches = 8
[schedule]
hint = "1f1b"
dispatch = "fixed"
"""

LATE = {"model": "lognormal", "base_ms": 0.4, "sigma": 1.4}
PICTURES: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "gpipe": {"schedule.hint": "gpipe"},
    "zbv": {"schedule.hint": "zbv"},
    "kfkb": {"schedule.hint": "kfkb", "schedule.k": 2, "variability.network": {"model": "constant", "base_ms": 1.5}},
    "late-1f1b": {"variability.network": {"model": "constant", "base_ms": 1.5}},
    "two-stages": {
        "parallel.pipeline": 2,
        "batch.microbatches": 4,
        "schedule.hint": "zbv",
        "schedule.dispatch": "ready",
    },
    "varied-fixed": {"variability.network": LATE},
    "varied-ready": {"variability.network": LATE, "schedule.hint": "bf", "schedule.dispatch": "ready"},
    "cap-1f1b": {
        "variability.network": {"model": "constant", "base_ms": 1.5},
        "schedule.hint": "bf",
        "schedule.dispatch": "ready",
        "schedule.in_flight": "1f1b",
    },
    "cap-2x": {
        "variability.network": {"model": "constant", "base_ms": 1.5},
        "schedule.hint": "bf",
        "schedule.dispatch": "ready",
        "schedule.in_flight": "2x",
    },
}
"""What each picture changes of the job."""


def draw(folder: Path) -> dict[str, Path]:
    """Draw all pictures as SVG files and return them by name."""
    job = folder / "example.toml"
    job.write_text(JOB, encoding="utf-8")
    found = {}
    for name, settings in PICTURES.items():
        (found[name],) = hpcpipe.predict(job, settings, steps=1).plot(folder / f"{name}.svg")
    return found
