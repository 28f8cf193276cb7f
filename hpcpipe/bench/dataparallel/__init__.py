"""Data parallelism between emulated hosts: step times of several ways to sum gradients, beside what bounds them all."""

from hpcpipe.bench.dataparallel.command import run

__all__ = ["run"]
