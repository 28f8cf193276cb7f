"""A small valid job and how tests change it."""

from pathlib import Path

from hpcpipe.job import Fault, JobError, load_job

VALID = """\
[model]
kind = "gpt"
layers = 4
dim = 64
heads = 4
context = 32

[data]
kind = "text"
path = "corpus.txt"

[parallel]
pipeline = 2
"""
SYNTHETIC = """\
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
"""
"""How a job begins whose stages compute nothing: lines of [device] follow, then other tables."""


def write_job(folder: Path, text: str | bytes = VALID, *, corpus: bytes | None = b"to be or not to be, " * 20) -> Path:
    """Write a job file and its data, and return the job's path."""
    if corpus is not None:
        (folder / "corpus.txt").write_bytes(corpus)
    path = folder / "small.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def faults_of(path: Path, *overrides: str, ranks: int | None = None) -> tuple[Fault, ...]:
    """Return the faults of a job, none if it is right."""
    try:
        load_job(path, overrides, ranks=ranks)
    except JobError as error:
        return error.faults
    return ()


def fault_of(path: Path, *overrides: str, ranks: int | None = None) -> Fault:
    """Return the only fault of a job."""
    faults = faults_of(path, *overrides, ranks=ranks)
    assert len(faults) == 1, "\n".join(map(str, faults))
    return faults[0]


def place(fault: Fault) -> tuple[int, int]:
    """Return line and column."""
    return fault.line, fault.column
