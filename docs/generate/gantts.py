"""The pictures that pages compare: small pipelines, simulated and drawn by hpcpipe itself.

The pictures of one group have one time scale, and where tasks or messages vary they meet the same draws.
"""

from pathlib import Path
from typing import Any, NamedTuple

import hpcpipe
from hpcpipe.analyze import length_ns, plot_gantt

ROOT = Path(__file__).parents[2]
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

LATE = {"variability.network": {"model": "constant", "base_ms": 1.5}}
VARIED = {"variability.network": {"model": "lognormal", "base_ms": 0.4, "sigma": 1.4}}
NOISY = {"variability.compute": {"model": "lognormal", "sigma": 0.8}}
READY = {"schedule.dispatch": "ready"}
FIXED_1F1B = {"schedule.hint": "1f1b", "schedule.dispatch": "fixed"}
SHORT = {"batch.microbatches": 12, "parallel.pipeline": 4}
REPLICAS = {
    "parallel.pipeline": 2,
    "parallel.data": 2,
    "model.layers": 4,
    "batch.microbatches": 4,
    "comm.bucket_mb": 0.5,
}


class Group(NamedTuple):
    """What each picture changes of the job, the job's file (else the one above), and how many steps go before."""

    pictures: dict[str, dict[str, Any]]
    job: str = ""
    before: int = 0


TWO_STAGES = {**READY, "parallel.pipeline": 2, "batch.microbatches": 4, "schedule.hint": "zbv"}
GROUPS = (
    Group({"1f1b": {}, "gpipe": {"schedule.hint": "gpipe"}, "zbv": {"schedule.hint": "zbv"}}),
    Group({"two-stages": TWO_STAGES}),
    Group({"late-1f1b": LATE, "kfkb": {**LATE, "schedule.hint": "kfkb", "schedule.k": 2}}),
    Group(
        {f"cap-{cap}": {**LATE, **READY, "schedule.hint": "bf", "schedule.in_flight": cap} for cap in ("1f1b", "2x")}
    ),
    Group({"varied-fixed": VARIED, "varied-ready": {**VARIED, **READY, "schedule.hint": "bf"}}),
    Group({"noisy-fixed": NOISY, "noisy-critical": {**NOISY, **READY, "schedule.hint": "critical"}}),
    Group({"emulated-zbv": SHORT, "emulated-1f1b": {**SHORT, **FIXED_1F1B}}, "jobs/emulated.toml"),
    Group(
        {"split": REPLICAS, "unsplit": {**REPLICAS, "comm.split_allreduce": False}}, "jobs/quickstart.toml", before=2
    ),
)


def draw(folder: Path) -> dict[str, Path]:
    """Draw all pictures as SVG files and return them by name."""
    example = folder / "example.toml"
    example.write_text(JOB, encoding="utf-8")
    machine = hpcpipe.Machine(tflops=0.03, gbit=1.0)
    found = {}
    for group in GROUPS:
        job, step = ROOT / group.job if group.job else example, (group.before, group.before)
        logs = {}
        for name, changes in group.pictures.items():
            predictions = hpcpipe.predict(job, changes, machine=machine, steps=group.before + 1).predictions
            logs[name] = predictions[0].log
        longest = max(length_ns(log, step) for log in logs.values())
        for name, log in logs.items():
            found[name] = folder / f"{name}.svg"
            plot_gantt(log, found[name], step, axis_ns=longest)
    return found
