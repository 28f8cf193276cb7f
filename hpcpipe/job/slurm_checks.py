"""What the table [slurm] and the rest of a job must satisfy together.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.faults import Problem
from hpcpipe.job.rules import Rules, count
from hpcpipe.job.schema import Job
from hpcpipe.job.slurm import seconds_of
from hpcpipe.job.words import show

CHECKS = Rules()


@CHECKS.needs(
    "slurm.nodes",
    "slurm.ranks_per_node",
    "slurm.gpus_per_node",
    "parallel.pipeline",
    "parallel.data",
    "parallel.tensor",
)
def _the_nodes_hold_as_many_ranks_as_the_mesh(job: Job, _: int | None) -> Iterator[Problem]:
    slurm, mesh = job.slurm, job.parallel
    nodes, per_node = slurm.sizes(mesh.ranks)
    product = f"pipeline {mesh.pipeline} x data {mesh.data} x tensor {mesh.tensor}"
    if nodes * per_node != mesh.ranks:
        fitting = (
            f"nodes = {mesh.ranks // per_node}" if mesh.ranks % per_node == 0 else f"[parallel] to {nodes * per_node}"
        )
        yield Problem(
            ("slurm", "nodes" if isinstance(slurm.nodes, int) else "ranks_per_node"),
            f"{count(nodes, 'node')} x {count(per_node, 'rank')} a node = {nodes * per_node}, but [parallel] needs "
            f"{count(mesh.ranks, 'rank')} ({product})",
            f"set {fitting}",
        )
    if 0 < slurm.gpus_per_node < per_node:
        yield Problem(
            ("slurm", "ranks_per_node"),
            f"{count(per_node, 'rank')} of a node cannot share its {count(slurm.gpus_per_node, 'GPU')}: each takes one",
            f"set ranks_per_node to at most {slurm.gpus_per_node}",
        )


@CHECKS.needs("slurm.signal", "slurm.time")
def _the_signal_comes_before_the_end(job: Job, _: int | None) -> Iterator[Problem]:
    limit = seconds_of(job.slurm.time)
    if limit is not None and job.slurm.signal and job.slurm.lead_s >= limit:
        yield Problem(
            ("slurm", "signal"),
            f"signal = {show(job.slurm.signal)} comes {job.slurm.lead_s} s before the end, but time = "
            f"{show(job.slurm.time)} is only {limit} s: the job would be stopped as soon as it starts",
            f"set signal to at most {job.slurm.signal.partition('@')[0]}@{limit // 2}, or a longer time",
        )
