"""One continuous history of a training that was stopped and went on: its metrics without gaps or repeats, its starts.

It knows files of run directories, not what is trained.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcpipe.job.run_directory import write_whole
from hpcpipe.train.metrics import METRICS

HISTORY = "history.json"
FORMAT, SCHEMA_VERSION = "hpcpipe-history", "1.0.0"


def carry_metrics(source: Path, run_directory: Path, first_step: int) -> None:
    """Begin `metrics.jsonl` with the lines of the steps before `first_step` that `source` has."""
    kept = {}
    with suppress(FileNotFoundError):
        for line in (source / METRICS).read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line of a run that was killed
                step = int(json.loads(line)["step"])
                if step < first_step:
                    kept[step] = line
    if kept or (run_directory / METRICS).exists():
        write_whole(run_directory / METRICS, "".join(f"{kept[step]}\n" for step in sorted(kept)))


def add_start(source: Path | None, run_directory: Path, start: dict[str, Any]) -> None:
    """Write `history.json`: the starts that `source` tells of, and this one."""
    starts: list[dict[str, Any]] = []
    if source is not None:
        with suppress(OSError, ValueError, KeyError):
            starts = json.loads((source / HISTORY).read_text(encoding="utf-8"))["starts"]
    content = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "starts": [*starts, start]}
    write_whole(run_directory / HISTORY, json.dumps(content, indent=2) + "\n")
