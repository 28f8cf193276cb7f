"""One GPU under the runtime: how long it has nothing between two ready tasks, and GPT blocks beside a bare torch loop.

One stage without messages: what is measured is giving tasks, not sending. Without a GPU it says so and measures none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task

if TYPE_CHECKING:
    import torch

    from hpcpipe.device.cuda import Cuda

STEPS = 20
WARM_UP = 5
MICROBATCHES = 16
AHEAD = (1, 2, 4)
US = 1e-3


class Size(NamedTuple):
    """A GPT: its blocks, width, heads, the length of a sequence and the sequences of a micro-batch."""

    name: str
    layers: int
    dim: int
    heads: int
    length: int
    sequences: int


SMALL = Size("4 blocks of 256", 4, 256, 4, 128, 1)
LARGE = Size("4 blocks of 2048, bf16", 4, 2048, 16, 2048, 2)
VOCABULARY = 8192


class Measured(NamedTuple):
    """A step's wall time in µs, the host's time for giving a task, and the GPU's time without one between two."""

    step_us: float
    give_us: float
    idle_us: float
    longest_idle_us: float


def run(*, steps: int = STEPS, quick: bool = False, progress: Callable[[], object] = lambda: None) -> BenchTable:
    """Measure on this process's first GPU; `quick` leaves the large blocks out."""
    import torch

    from hpcpipe.device.gpu import why_none

    columns = (
        Column("model"),
        Column("given ahead", digits=0),
        Column("step", "us", 0),
        Column("giving a task", "us", 1),
        Column("idle between", "us", 1),
        Column("longest", "us", 1),
        Column("bare loop", "us", 0),
        Column("of its speed", "x", 3),
    )
    title = "a GPU under the runtime: time without a task, and speed beside a bare loop"
    if reason := why_none():
        why = f"no GPU here: not run ({reason})"
        return BenchTable(name="gpu", title=title, columns=columns, rows=(), notes=(why,))
    device = _device()
    rows: list[Row] = []
    for size in (SMALL,) if quick else (SMALL, LARGE):
        model = Model(device, size, torch.float32 if size is SMALL else torch.bfloat16)
        bare = bare_loop(device, model, steps=steps)
        progress()
        for ahead in AHEAD:
            found = through_the_runtime(device, model, ahead=ahead, steps=steps)
            rows.append((size.name, ahead, *found, bare, bare / found.step_us))
            progress()
    return BenchTable(
        name="gpu",
        title=title,
        columns=columns,
        rows=rows,
        notes=(
            f"{device.name}, torch {torch.__version__}; one stage, {MICROBATCHES} micro-batches, fixed 1F1B; median of "
            f"{steps} steps after {WARM_UP}; times of the GPU are its events'",
            "idle between: the GPU's time from the end of one task to the begin of the next, the median of a step's "
            "pairs; longest: the longest of a step. Aim: under 10 us with large blocks and 2 given ahead",
            "giving a task: the host's time in its launch; where that is more than the GPU takes for it, as with small "
            "blocks, the GPU waits for the host whatever is given ahead, and so it does in the bare loop",
            "of its speed: bare loop / step. Aim: 0.97 with large blocks",
        ),
    )


def _device() -> "Cuda":
    from hpcpipe.device.cuda import Cuda
    from hpcpipe.device.gpu import TorchGpu
    from hpcpipe.device.messages import Staged
    from hpcpipe.runtime import now

    return Cuda(
        TorchGpu(0),
        now=now,
        messages=lambda cuda: Staged(cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward),
    )


class Model:
    """The blocks, their input, and where gradients are added; both loops use it in the same way."""

    def __init__(self, device: "Cuda", size: Size, dtype: "torch.dtype") -> None:
        import torch

        from hpcpipe.models import build, gpt_layers, next_token_loss

        made = gpt_layers(
            layers=size.layers,
            dim=size.dim,
            heads=size.heads,
            context=size.length,
            vocab_size=VOCABULARY,
            dropout=0.0,
            seq_len=size.length,
        )
        self.layers = [layer.to(device.device, dtype) for layer in build(made, range(len(made)), seed=0)]
        self.parameters = [p for layer in self.layers for p in layer.parameters()]
        tokens = torch.randint(VOCABULARY, (size.sequences, size.length), generator=torch.Generator().manual_seed(0))
        self.tokens = tokens.to(device.device)
        self.loss = partial(next_token_loss, tokens=tokens.numel())
        self.sums = [torch.zeros_like(p, dtype=torch.float32) for p in self.parameters]

    def load(self, step: int) -> None:
        """Have the micro-batch ready."""

    def inputs(self, microbatch: int) -> "torch.Tensor":
        """Return the only micro-batch."""
        del microbatch
        return self.tokens

    targets = inputs

    def add(self, microbatch: int, gradients: "Sequence[torch.Tensor | None]") -> None:
        """Add a micro-batch's gradients in fp32."""
        import torch

        del microbatch
        torch._foreach_add_(self.sums, [each for each in gradients if each is not None])


def bare_loop(device: "Cuda", model: Model, *, steps: int) -> float:
    """Return the median µs of a step of torch alone: forward, backward, add, for each micro-batch."""
    import torch

    from hpcpipe.runtime import now

    times = []
    for _ in range(WARM_UP + steps):
        device.gpu.synchronize()
        begin = now()
        for microbatch in range(MICROBATCHES):
            value: Any = model.inputs(microbatch)
            for layer in model.layers:
                value = layer(value)
            loss = model.loss(value, model.targets(microbatch))
            model.add(microbatch, torch.autograd.grad(loss, model.parameters))
        device.gpu.synchronize()
        times.append((now() - begin) * US)
    return median(times[WARM_UP:])


def through_the_runtime(device: "Cuda", model: Model, *, ahead: int, steps: int) -> Measured:
    """Return what the same work takes when the engine gives it to the GPU as tasks."""
    from hpcpipe.runtime import Engine, NoBuckets, Waiting, now
    from hpcpipe.runtime.stage import Chunk, Stage

    schedule = Schedule("1f1b", "fixed", Placement(1), MICROBATCHES, (Limits(),))
    recorder, mailbox = _Tasks(), _NoMail()
    chunk = Chunk(model.layers, model.parameters, first=True, loss=model.loss, sink=model.add)
    stage = _TimedStage(Stage([chunk], batches=model, device=device))
    engine = Engine(
        stage=stage,
        mailbox=mailbox,  # type: ignore[arg-type]
        buckets=NoBuckets(),
        recorder=recorder,
        waiting=Waiting("spin"),
        number=0,
        make_plan=lambda _step, _gathering: schedule.stage_plan(0),
        ahead=ahead,
    )
    found = []
    for step in range(WARM_UP + steps):
        device.gpu.synchronize()
        recorder.times.clear()
        stage.given_ns.clear()
        begin = now()
        engine.run_step(step)
        device.gpu.synchronize()
        wall = (now() - begin) * US
        idle = [(after[0] - before[1]) * US for before, after in pairwise(recorder.times)]
        found.append(Measured(wall, median(stage.given_ns) * US, median(idle), max(idle)))
    return Measured(*(median(each) for each in zip(*found[WARM_UP:], strict=True)))


class _TimedStage:
    """A stage, and how long the host was in the launch of each task."""

    has_data = True

    def __init__(self, stage: Any) -> None:
        self.load, self._start = stage.load, stage.start
        self.given_ns: list[int] = []

    def start(self, step: int, task: Task, received: Any) -> Any:
        """Give a task to the GPU."""
        from hpcpipe.runtime import now

        begin = now()
        running = self._start(step, task, received)
        self.given_ns.append(now() - begin)
        return running


class _Tasks:
    """Keeps when the GPU had each task."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        *rest: int,
        **named: int,
    ) -> None:
        """Keep a task's times."""
        del step, microbatch, chunk, t_ready, rest, named
        if kind <= Kind.W:
            self.times.append((t_start, t_end))


class _NoMail:
    """The messages of a stage that has no neighbours."""

    due = None
    sending = False

    def begin(self, step: int) -> None:
        """Expect nothing."""

    def poll(self) -> tuple[list[Any], list[Any]]:
        """Return that nothing came."""
        return [], []
