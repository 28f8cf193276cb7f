"""What the runtime itself costs: 1F1B over stages so small that nothing else takes time, beside torch's own 1F1B.

Each stage is a Linear(8, 8) and a micro-batch one row. Both run in turns on the same ranks, torch over gloo.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from hpcpipe.bench import torch_pipelining
from hpcpipe.bench.emulated import meet
from hpcpipe.bench.ranks import run_on_ranks
from hpcpipe.bench.table import BenchTable, Column, Row

if TYPE_CHECKING:
    import torch

    from hpcpipe.runtime import World

RANKS = 2
STEPS = 40
WARM_UP = 5
MICROBATCHES = (32, 64)
WIDTH = 8
US = 1e-3

Round = tuple[float, float]  # of one step: wall µs of the slowest rank, CPU µs of this rank


def run(*, steps: int = STEPS, ranks: int = RANKS, progress: Callable[[], object] = lambda: None) -> BenchTable | None:
    """Measure on so many ranks, or on those that a launcher has started; None on all of them but the first."""
    return run_on_ranks(
        "overhead", partial(_work, steps), ranks=ranks, words=["--steps", str(steps)], progress=progress
    )


def _work(steps: int, progress: Callable[[], object]) -> BenchTable | None:
    import torch

    from hpcpipe.runtime import FailureGuard, World

    torch.set_num_threads(1)
    world = World()
    with FailureGuard(world.comm, place="the benchmark", stage=-1, host=world.host):
        rows: list[Row] = []
        for count in MICROBATCHES:
            rows.append(_measure(world, count, steps))
            progress()
    return _table(world, steps, rows) if world.rank == 0 else None


def _measure(world: "World", count: int, steps: int) -> Row:
    """Run both in turns and return their medians, each a task; the same on all ranks."""
    with_torch = torch_pipelining.available()
    with tempfile.TemporaryDirectory(prefix="hpcpipe-bench-") as folder:
        ours = _Ours(world, count, Path(folder))
        with torch_pipelining.process_group(world) if with_torch else nullcontext():
            theirs = _theirs(world, count) if with_torch else None
            mine: list[Round] = []
            others: list[Round] = []
            for step in range(WARM_UP + steps):
                mine.append(_timed(world, partial(ours.step, step)))
                if theirs is not None:
                    others.append(_timed(world, theirs))
        own_us = world.collect(ours.own_us_per_task(after=WARM_UP))
        ours.free()
    tasks = 2 * count
    wall, cpu = (median(one[which] for one in mine[WARM_UP:]) / tasks for which in range(2))
    all_cpu = max(world.collect(cpu))
    if not others:
        return (world.size, count, wall, all_cpu, max(own_us), None, None, None)
    torch_wall, torch_cpu = (median(one[which] for one in others[WARM_UP:]) / tasks for which in range(2))
    return (world.size, count, wall, all_cpu, max(own_us), torch_wall, max(world.collect(torch_cpu)), torch_wall / wall)


def _timed(world: "World", step: Callable[[], object]) -> Round:
    meet(world.comm)
    begin, cpu = time.monotonic_ns(), time.process_time_ns()
    step()
    end, used = time.monotonic_ns(), time.process_time_ns() - cpu
    marks = world.collect([begin, end])
    return (max(mark[1] for mark in marks) - min(mark[0] for mark in marks)) * US, used * US


class _Rows:
    """The only micro-batch there is."""

    def __init__(self) -> None:
        import torch

        self._row = torch.ones(1, WIDTH)

    def load(self, step: int) -> None:
        """Have it ready."""

    def inputs(self, microbatch: int) -> "torch.Tensor":
        """Return it as the model's input."""
        del microbatch
        return self._row

    def targets(self, microbatch: int) -> "torch.Tensor":
        """Return it as what the loss compares with."""
        del microbatch
        return self._row


class _Ours:
    """One rank of our 1F1B with its log, and a count of the CPU time that the runtime itself takes."""

    def __init__(self, world: "World", count: int, folder: Path) -> None:
        import torch
        from torch import nn

        from hpcpipe.device.cpu import Cpu
        from hpcpipe.events import EventWriter, LogHeader
        from hpcpipe.plan import Limits, Placement, Schedule
        from hpcpipe.plan.slots import sources
        from hpcpipe.runtime import Engine, Inlet, Mailbox, Mesh, NoBuckets, Waiting, choose_poll
        from hpcpipe.runtime.stage import Chunk, Stage
        from hpcpipe.train.accumulate import Accumulator

        stages, stage = world.size, world.rank
        self._mesh = mesh = Mesh(world.comm, pipeline=stages, data=1, tensor=1)
        schedule = Schedule("1f1b", "fixed", Placement(stages), count, (Limits(),) * stages)
        layer = nn.Linear(WIDTH, WIDTH)
        parameters = list(layer.parameters())
        sums = [torch.zeros_like(parameter) for parameter in parameters]

        def add(gradients: Any, first: bool) -> None:
            for total, gradient in zip(sums, gradients, strict=True):
                total.copy_(gradient) if first else total.add_(gradient)

        chunk = Chunk(
            [layer],
            parameters,
            first=stage == 0,
            loss=_loss if stage == stages - 1 else None,
            sink=Accumulator(add, microbatches=count, ordered=True),
        )
        self._tasks = 2 * count
        self._mailbox = Mailbox(
            mesh,
            inlets=[Inlet(*source) for source in sources(schedule, stage)],
            payload_bytes=4 * WIDTH,
            memory=Cpu(sharing_ranks=mesh.sharing_ranks),
        )
        started = datetime.now(UTC).isoformat()
        header = LogHeader("", "", stages, (stages, 1, 1), world.rank, (stage, 0, 0), world.host, "cpu", started)
        self._log = EventWriter(folder / f"rank_{world.rank:05d}.h5", header)
        poll = choose_poll("auto", sharing_ranks=mesh.sharing_ranks)
        self._meter = meter = _Meter(Stage([chunk], batches=_Rows()), Waiting(poll), self._mailbox)
        self._engine = Engine(
            stage=meter.stage,
            mailbox=self._mailbox,
            buckets=NoBuckets(),
            recorder=self._log,
            waiting=meter.waiting,
            number=stage,
            make_plan=lambda _step, _gathering: schedule.stage_plan(stage),
        )

    def step(self, number: int) -> None:
        """Run a step; every other one with the meter, which itself takes time."""
        self._meter.on = number % 2 == 1
        begin = time.thread_time_ns()
        self._engine.run_step(number)
        self._meter.end(time.thread_time_ns() - begin)

    def own_us_per_task(self, *, after: int) -> float:
        """Return the median CPU time of a step outside the stage's tasks and the waits, a task."""
        return median(self._meter.own[after // 2 :]) * US / self._tasks

    def free(self) -> None:
        """Free what MPI holds (collective)."""
        self._engine.drain()
        self._mailbox.free()
        self._log.close()
        self._mesh.free()


def _loss(output: "torch.Tensor", target: "torch.Tensor") -> "torch.Tensor":
    return (output - target).square().sum()


class _Meter:
    """Counts CPU time that is not the runtime's: a stage's tasks, and waiting with the looks that found nothing."""

    def __init__(self, stage: Any, waiting: Any, mailbox: Any) -> None:
        self.on = False
        self.own: list[int] = []
        self._elsewhere = 0
        self._waits = False
        self.stage, self.waiting = stage, waiting
        self._start, self._idle, self._poll = stage.start, waiting.idle, mailbox.poll
        stage.start, waiting.idle, mailbox.poll = self._metered_start, self._metered_idle, self._metered_poll

    def end(self, used: int) -> None:
        """End a step that used so many ns of CPU time."""
        if self.on:
            self.own.append(used - self._elsewhere)
        self._elsewhere = 0

    def _metered_start(self, step: int, task: Any, received: Any) -> Any:
        if not self.on:
            return self._start(step, task, received)
        begin = time.thread_time_ns()
        running = self._start(step, task, received)
        self._elsewhere += time.thread_time_ns() - begin
        return running

    def _metered_idle(self, due: int | None = None) -> None:
        begin = time.thread_time_ns()
        self._idle(due)
        self._elsewhere += time.thread_time_ns() - begin
        self._waits = True

    def _metered_poll(self) -> Any:
        if not (self.on and self._waits):
            return self._poll()
        begin = time.thread_time_ns()
        found = self._poll()
        if not (found[0] or found[1]):
            self._elsewhere += time.thread_time_ns() - begin
        else:
            self._waits = False
        return found


def _theirs(world: "World", count: int) -> Callable[[], object]:
    """Return what runs one step of torch's Schedule1F1B."""
    import torch
    from torch import nn

    rows = torch.ones(count, WIDTH)
    _, step = torch_pipelining.make_schedule(
        [(world.rank, nn.Linear(WIDTH, WIDTH), torch.ones(1, WIDTH))],
        virtual_stages=world.size,
        microbatches=count,
        inputs=rows,
        targets=rows,
        loss=lambda output, target: (output - target).square().sum(),
        kind="1f1b",
    )
    return step


def _table(world: "World", steps: int, rows: list[Row]) -> BenchTable:
    import torch

    return BenchTable(
        name="overhead",
        title=f"microseconds a task (F or B) of 1F1B over {world.size} stages of Linear({WIDTH}, {WIDTH})",
        columns=(
            Column("ranks"),
            Column("micro-batches"),
            Column("wall", "us", 1),
            Column("CPU", "us", 1),
            Column("own CPU", "us", 1),
            Column("torch wall", "us", 1),
            Column("torch CPU", "us", 1),
            Column("torch x", "x"),
        ),
        rows=rows,
        notes=(
            f"median of {steps} steps of both, in turns; the slowest rank; {' '.join(world.mpi_library.split())}, "
            f"torch {torch.__version__}",
            "wall: the step over 2 x micro-batches; CPU: the same of the process, its waiting included",
            "own CPU: without the stage's forward and backward and without waits: poll, choose, post, log",
            "torch: torch.distributed.pipelining's Schedule1F1B over gloo; torch x: how many times our wall time",
        ),
    )
