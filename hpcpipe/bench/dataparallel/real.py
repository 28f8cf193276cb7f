"""Steps of a small GPT that computes: by this package's trainer parts, by torch's DistributedDataParallel, by MPI.

All replicas of all ways have the same layers, loss, optimizer and batches, read from one job.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcpipe.bench.dataparallel.ddp import MEGABYTE
from hpcpipe.device.cpu import Cpu
from hpcpipe.job import Job, load_job
from hpcpipe.models import build
from hpcpipe.runtime import Mesh, Waiting, now
from hpcpipe.train.batches import batches_of
from hpcpipe.train.layout import Layout
from hpcpipe.train.model import model_of
from hpcpipe.train.rank import NoLog, Rank

if TYPE_CHECKING:
    from hpcpipe.runtime import World

LAYERS = 6
JOB = f"""
[job]
name = "gpt"
steps = 100000
[model]
kind = "gpt"
layers = {LAYERS}
dim = 256
heads = 4
context = 64
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
seq_len = 64
[parallel]
chunks = {LAYERS}
[batch]
microbatches = 1
microbatch_size = 4
[schedule]
hint = "interleaved"
[optimizer]
name = "sgd"
lr = 1e-3
nonfinite = "late-stop"
[events]
on = false
"""


class RealOurs:
    """One replica of the engine, with the parts that train."""

    def __init__(self, world: "World", *, bucket_bytes: int) -> None:
        job = _job(world, bucket_bytes)
        self._mesh = Mesh(world.comm, pipeline=1, data=world.size, tensor=1)
        self._rank = Rank(
            job,
            Layout.of(job),
            mesh=self._mesh,
            device=Cpu(sharing_ranks=world.size),  # emulated hosts share the cores
            waiting=Waiting("sleep"),
            recorder=NoLog(),
            clock_shifts={},
        )
        self._step = 0

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns."""
        ends = []
        for _ in range(steps):
            ends.append(self._rank.engine.run_step(self._step).end)
            self._step += 1
        self._rank.engine.gather()
        return ends

    def free(self) -> None:
        """Free what the rank holds (collective)."""
        self._rank.free()
        self._mesh.free()


class Replica:
    """The whole model in one module, its batches, and an optimizer; sums no gradients."""

    def __init__(self, world: "World") -> None:
        job = _job(world, 1)
        model = model_of(job)
        Cpu(sharing_ranks=world.size)
        self.module: nn.Module = nn.Sequential(*build(model.layers, range(len(model.layers)), seed=job.run.seed))
        self._loss = model.loss
        self._batches = batches_of(job, replica=world.rank, count=model.count, total=model.total)
        self.parameters = list(self.module.parameters())
        self._optimizer = torch.optim.SGD(self.parameters, lr=job.optimizer.lr, momentum=job.optimizer.momentum)
        self._step = 0

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns."""
        return [self._run() for _ in range(steps)]

    def free(self) -> None:
        """Do nothing: there is nothing to free."""

    def sum_gradients(self) -> None:
        """Do nothing: a step without communication, or gradients that have been summed in the backward."""

    def _run(self) -> int:
        self._optimizer.zero_grad(set_to_none=True)
        self._batches.load(self._step)
        self._step += 1
        self._loss(self.module(self._batches.inputs(0)), self._batches.targets(0)).backward()
        self.sum_gradients()
        self._optimizer.step()
        return now()


class RealDdp(Replica):
    """Summed by torch; the process group must be there."""

    def __init__(self, world: "World", *, bucket_bytes: int) -> None:
        super().__init__(world)
        self.module = DistributedDataParallel(self.module, bucket_cap_mb=bucket_bytes / MEGABYTE)


class RealMpi(Replica):
    """Summed by one all-reduce after the backward."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self._comm = world.comm
        self._flat = torch.empty(sum(parameter.numel() for parameter in self.parameters))

    def sum_gradients(self) -> None:
        """Sum all gradients over the replicas."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        parts = self._flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            part.copy_(gradient.view(-1))
        self._comm.Allreduce(MPI.IN_PLACE, self._flat.numpy())
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


def layer_bytes() -> list[int]:
    """Return the bytes of every layer's gradient."""
    with _job_file() as path:
        model = model_of(load_job(path))
    modules = build(model.layers, range(len(model.layers)), seed=0)
    return [sum(parameter.nbytes for parameter in module.parameters()) for module in modules]


def _job(world: "World", bucket_bytes: int) -> Job:
    with _job_file() as path:
        # a bucket below the smallest tensor holds one tensor
        return load_job(path, [f"parallel.data={world.size}", f"comm.bucket_mb={max(1, bucket_bytes) * 1e-6}"])


@contextmanager
def _job_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as folder:
        path = Path(folder) / "job.toml"
        path.write_text(JOB)
        yield path
