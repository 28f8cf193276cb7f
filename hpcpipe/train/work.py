"""What one rank computes and where: the stage, its gradient buckets and its mailbox, built for torch or emulated.

The trainer and the engine see no difference.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hpcpipe.device import Emulated
from hpcpipe.device.choice import Dealt, Seat, deal
from hpcpipe.job import Job
from hpcpipe.job.device import Device
from hpcpipe.job.device import Emulated as EmulatedDevice
from hpcpipe.runtime import Inlet, Mailbox, Mesh, World, now
from hpcpipe.runtime.engine import Buckets as EngineBuckets
from hpcpipe.runtime.engine import Stage as EngineStage
from hpcpipe.train.layout import Layout
from hpcpipe.train.scaler import LossScale

if TYPE_CHECKING:
    from torch import nn

    from hpcpipe.collective.tensor import TensorGroup
    from hpcpipe.device.cpu import Cpu
    from hpcpipe.device.cuda import Cuda
    from hpcpipe.train.accumulate import Accumulator
    from hpcpipe.train.clip import Verdict
    from hpcpipe.train.evaluate import Evaluator
    from hpcpipe.train.grouping import Grouped, Groupings


class Stage(EngineStage, Protocol):
    """A stage whose loss can be asked for."""

    def loss(self) -> float:
        """Return this rank's share of the step's loss."""


class Buckets(EngineBuckets, Protocol):
    """Buckets that can be counted and freed."""

    @property
    def square_norm(self) -> float:
        """The squared gradient norm of this rank's shards at their last update."""

    @property
    def verdict(self) -> "Verdict | None":
        """What all ranks have agreed on about the step's gradients, if they do."""

    @property
    def chunks(self) -> Sequence[Collection[int]]:
        """The chunks whose parameters each bucket holds."""

    @property
    def tied(self) -> tuple[int, ...]:
        """The buckets whose gradients are exchanged with other stages."""

    @property
    def early(self) -> tuple[int, ...]:
        """The buckets that are updated and gathered between the sums of a backward."""

    def __len__(self) -> int:
        """Return how many there are."""

    def free(self) -> None:
        """Free the persistent requests (collective)."""


@dataclass(frozen=True, slots=True)
class Work:
    """The parts of one rank. `modules`, `accumulators` and `parameters` are its chunks' in order; none if emulated.

    `evaluate` goes through what is held out for evaluation, where something is (evaluate.py).
    `losses` gives the losses of the step by micro-batch, as far as they are known here.
    """

    stage: Stage
    buckets: Buckets
    mailbox: Mailbox
    evaluate: "Evaluator | None" = None
    modules: "list[nn.Module]" = field(default_factory=list)
    accumulators: "list[Accumulator]" = field(default_factory=list)
    parameters: "Sequence[Sequence[nn.Parameter]]" = ()
    losses: Callable[[], Mapping[int, float]] = dict
    scale: LossScale = field(default_factory=LossScale)


def deal_gpus(job: Job, world: World) -> Dealt:
    """Return the GPU of every rank (collective); none where the job computes without or a rank has none of its own."""
    kind = job.device.kind
    if not isinstance(job.device, Device) or kind == "cpu":
        return Dealt(None)
    import torch

    from hpcpipe.device.gpu import identity, num_gpus

    seen = [identity(number) for number in range(num_gpus())]
    seats = world.gather([world.host, seen])
    dealt = None
    if world.rank == 0:
        dealt = deal(
            [Seat(host, tuple(gpus)) for host, gpus in seats],
            required=kind == "cuda",
            share=job.device.share,
            torch=torch.__version__,
        )
    numbers, problem = world.share(dealt)
    return Dealt(None if numbers is None else tuple(numbers), problem)


def make_device(
    job: Job, *, sharing_ranks: int, gpu: int | None = None, gpu_aware: bool = False
) -> "Cpu | Cuda | Emulated":
    """Return the device of this rank.

    `gpu` is the number of its GPU, where it has one, `gpu_aware` whether MPI is given that one's memory.
    """
    if isinstance(job.device, EmulatedDevice):
        return Emulated(now, in_order=job.device.launch_ahead > 1)
    if gpu is not None:
        from hpcpipe.device.cuda import Cuda
        from hpcpipe.device.gpu import TorchGpu
        from hpcpipe.device.messages import Direct, Staged

        assert isinstance(job.device, Device)
        return Cuda(
            TorchGpu(gpu),
            now=now,
            messages=lambda cuda: (Direct if gpu_aware else Staged)(
                cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward
            ),
            nvtx=job.device.nvtx,
        )
    from hpcpipe.device.cpu import Cpu

    return Cpu(sharing_ranks=sharing_ranks)


def computes_in_this_thread(device: "Cpu | Cuda | Emulated") -> bool:
    """Return whether a task is done when its start returns, so that messages are not looked at meanwhile."""
    return device.threads > 0


def ahead_of(job: Job, device: "Cpu | Cuda | Emulated") -> int:
    """Return how many tasks a device is given at a time."""
    return 1 if computes_in_this_thread(device) else getattr(job.device, "launch_ahead", 1)


def make_work(
    job: Job,
    layout: Layout,
    *,
    mesh: Mesh,
    device: "Cpu | Cuda | Emulated",
    slices: "TensorGroup | None",
    clock_shifts: Mapping[int, int],
    groupings: "Groupings",
) -> Work:
    """Build the parts of this rank, for what holds first and ready to follow `groupings`.

    `clock_shifts` by rank: this rank's clock minus the other's (ns).
    """
    if isinstance(device, Emulated):
        from hpcpipe.train.emulated import emulated_work

        work = emulated_work(
            job, layout, mesh=mesh, device=device, slices=slices, clock_shifts=clock_shifts, groupings=groupings
        )
    else:
        from hpcpipe.train.trained import trained_work

        work = trained_work(job, layout, mesh=mesh, device=device, slices=slices, groupings=groupings)

    def follow(step: int, grouped: "Grouped") -> None:
        new = grouped.layout
        work.mailbox.plan(
            step, inlets(new, mesh.place.stage, ahead=ahead_of(job, device)), payload_bytes=new.boundary_bytes
        )

    groupings.follow(follow)
    return work


def inlets(layout: Layout, stage: int, *, ahead: int) -> list[Inlet]:
    """Return the inlets of a stage's mailbox; tasks given `ahead` hold their slots until the device has done them."""
    return [Inlet(feeds, chunk, source, slots + ahead - 1) for feeds, chunk, source, slots in layout.sources(stage)]
