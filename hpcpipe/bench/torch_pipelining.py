"""torch.distributed.pipelining over gloo on the ranks of a benchmark: the same tasks, draws and orders as ours.

An emulated module sleeps its drawn time in its forward and backward. Nothing here is timed against anything else.
"""

import csv
import io
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hpcpipe.bench.emulated import meet
from hpcpipe.job import Job
from hpcpipe.plan import Kind, Task
from hpcpipe.plan.hints.table import write_table
from hpcpipe.simulate.costs import emulated_costs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hpcpipe.runtime import World

NAMES = {"1f1b": "torch 1F1B", "zb-h1": "torch ZB-H1", "zbv": "torch ZBV"}
"""What the table calls torch's schedules, by our name of the order."""

_PATIENCE = timedelta(seconds=30)


def available() -> bool:
    """Whether this Python has a torch with gloo and pipelining."""
    if find_spec("torch") is None:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_gloo_available() and find_spec("torch.distributed.pipelining") is not None


@contextmanager
def process_group(world: "World") -> Iterator[None]:
    """Join the ranks in a gloo process group (collective); the addresses come from rank 0 over MPI."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    torch.set_num_threads(1)
    with socket.socket() as listener:
        listener.bind(("", 0))
        address = world.share([_own_address(world), listener.getsockname()[1]] if world.rank == 0 else None)
    store = TCPStore(address[0], address[1], world.size, world.rank == 0, timeout=_PATIENCE)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size, timeout=_PATIENCE)
    try:
        yield
    finally:
        meet(world.comm)
        dist.destroy_process_group()


def _own_address(world: "World") -> str:
    try:
        return socket.gethostbyname(world.host)
    except OSError:
        return "127.0.0.1"


def emulated_steps(job: Job, world: "World") -> tuple[float, ...] | None:
    """Run the steps of an emulated job with torch; return each one's ms on rank 0 (collective).

    The job's hint must be one of `NAMES`. Draws, order and the size of messages are the job's; what they hold is zeros.
    """
    from hpcpipe.job.device import Emulated

    device = job.device
    assert isinstance(device, Emulated)
    times, stages, stage = emulated_costs(job).times, job.parallel.pipeline, world.rank
    numbers = max(1, device.most_bytes // 4)
    modules = []
    for chunk in range(job.chunks):
        virtual = job.placement.virtual(stage, chunk)

        def duration(step: int, kind: Kind, microbatch: int, chunk: int = chunk) -> int:
            return times.duration(step, stage, Task(kind, microbatch, chunk))

        modules.append((virtual, _sleeping(duration, job.batch.microbatches, first=virtual == 0, split=job.splits)))
    schedule, run = _schedule(job, modules, numbers, stages=stages)
    lengths = []
    for step in range(job.run.steps):
        for _, module in modules:
            module.begin(step)
        meet(world.comm)
        begin = time.monotonic_ns()
        run()
        end = time.monotonic_ns()
        marks = world.collect([begin, end])
        lengths.append((max(mark[1] for mark in marks) - min(mark[0] for mark in marks)) * 1e-6)
    del schedule
    return tuple(lengths) if world.rank == 0 else None


def _schedule(
    job: Job, modules: "list[tuple[int, Any]]", numbers: int, *, stages: int
) -> tuple[Any, Callable[[], object]]:
    """Return torch's schedule for a job's order, and what runs one step of it on this rank."""
    import torch

    microbatches = job.batch.microbatches
    parts = [(virtual, module, torch.zeros(1, numbers)) for virtual, module in modules]
    return make_schedule(
        parts,
        virtual_stages=stages * job.chunks,
        microbatches=microbatches,
        inputs=torch.zeros(microbatches, numbers),
        targets=torch.zeros(microbatches, numbers),
        loss=lambda output, target: (output - target).sum(),
        kind=job.schedule.hint,
        table=write_table(job.orders(), job.placement, split=job.splits) if job.schedule.hint == "zb-h1" else None,
    )


def make_schedule(
    parts: "list[tuple[int, nn.Module, Tensor]]",
    *,
    virtual_stages: int,
    microbatches: int,
    inputs: "Tensor",
    targets: "Tensor",
    loss: "Callable[[Tensor, Tensor], Tensor]",
    kind: str,
    table: str | None = None,
) -> tuple[Any, Callable[[], object]]:
    """Return a schedule and what runs one step of it on this rank.

    Parameters
    ----------
    parts
        Of every chunk of this rank: its virtual stage, module, and an example of one micro-batch's input.
    kind
        "1f1b" for Schedule1F1B, "zbv" for ScheduleZBVZeroBubble; else `table` is the order, as torch writes it.
    """
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    device = torch.device("cpu")
    made: list[Any] = [
        PipelineStage(module, virtual, virtual_stages, device, input_args=(example,))
        for virtual, module, example in parts
    ]
    schedule: Any
    if kind == "1f1b":
        schedule = Schedule1F1B(made[0], microbatches, loss_fn=loss)
    elif kind == "zbv":
        schedule = ScheduleZBVZeroBubble(made, microbatches, loss_fn=loss)
    else:
        assert table is not None
        schedule = _PipelineScheduleRuntime(made, microbatches, loss_fn=loss)
        with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
            csv.writer(file).writerows(csv.reader(io.StringIO(table)))
            file.flush()
            schedule._load_csv(file.name, format="compute_only")
    virtual = {virtual for virtual, *_ in parts}
    arguments = (inputs,) if 0 in virtual else ()
    named = {"target": targets} if virtual_stages - 1 in virtual else {}

    def run() -> None:
        for _, module, _ in parts:
            module.zero_grad()
        schedule.step(*arguments, **named)

    return schedule, run


def _sleeping(duration: Callable[[int, Kind, int], int], microbatches: int, *, first: bool, split: bool) -> Any:
    """Return a module whose forward and backward sleep what was drawn for their micro-batch.

    Where the backward is split, torch differentiates a first stage as a whole when its weight gradient is due.
    """
    import torch
    from torch import nn
    from torch.autograd import Function

    class SleepInBackward(Function):
        @staticmethod
        def forward(ctx: Any, value: "Tensor", due: int) -> "Tensor":
            ctx.due = due
            return value.view_as(value)

        @staticmethod
        def backward(ctx: Any, gradient: "Tensor") -> "tuple[Tensor, None]":
            time.sleep(ctx.due * 1e-9)
            return gradient.contiguous(), None  # that of a sum is expanded, which gloo refuses to send

    class Sleeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))
            self.begin(0)

        def begin(self, step: int) -> None:
            """Start a step: micro-batches come in order, in the first step after one that only shows its shape."""
            self.number, self.microbatch = step, 0

        def forward(self, value: "Tensor") -> "Tensor":
            microbatch, self.microbatch = self.microbatch % microbatches, self.microbatch + 1
            forward, inputs = (duration(self.number, kind, microbatch) for kind in (Kind.F, Kind.B))
            weights = duration(self.number, Kind.W, microbatch) if split else 0
            if first:
                inputs, weights = 0, inputs + weights
            time.sleep(forward * 1e-9)
            return SleepInBackward.apply(value, inputs) + SleepInBackward.apply(self.weight, weights)

    return Sleeping()
