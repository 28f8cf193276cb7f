"""The work of a rank on an emulated device: drawn times instead of layers, and messages held back by drawn delays.

It must not need torch, so that many ranks start fast and small.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from hpcpipe.device import Emulated
from hpcpipe.job import Job
from hpcpipe.job.device import Emulated as EmulatedDevice
from hpcpipe.job.drawn import delay_model
from hpcpipe.plan import Task
from hpcpipe.plan.by_step import ByStep
from hpcpipe.plan.delays import seed_of_slice
from hpcpipe.runtime import LateMailbox, Mailbox, Mesh, NoBuckets, SyntheticStage
from hpcpipe.runtime.channel import Neighbour
from hpcpipe.runtime.header import Header
from hpcpipe.runtime.synthetic import Meet
from hpcpipe.simulate.costs import emulated_costs
from hpcpipe.train.layout import Layout
from hpcpipe.train.work import Work, ahead_of, inlets

if TYPE_CHECKING:
    from hpcpipe.collective.tensor import TensorGroup
    from hpcpipe.train.grouping import Grouped, Groupings


def emulated_work(
    job: Job,
    layout: Layout,
    *,
    mesh: Mesh,
    device: Emulated,
    slices: "TensorGroup | None",
    clock_shifts: Mapping[int, int],
    groupings: "Groupings",
) -> Work:
    """Build the parts of this rank; nothing here allocates more than its messages."""
    stage, emulated = mesh.place.stage, job.device
    assert isinstance(emulated, EmulatedDevice)
    times, devices = ByStep(emulated_costs(job).times), ByStep(emulated)

    def follow(step: int, grouped: "Grouped") -> None:
        times.change(step, emulated_costs(grouped.job).times)
        assert isinstance(grouped.job.device, EmulatedDevice)
        devices.change(step, grouped.job.device)

    groupings.follow(follow)
    synthetic = SyntheticStage(
        device,
        placement=layout.schedule.placement,
        stage=stage,
        duration=lambda step, task: times.at(step).duration(step, stage, task),
        bytes_from=lambda step, sender: devices.at(step).bytes_from(sender),
        meet=None if slices is None else _meeting(slices),
    )
    return Work(synthetic, NoBuckets(), _mailbox(job, layout, mesh, device, clock_shifts))


def _meeting(slices: "TensorGroup") -> Meet:
    def meet(step: int, task: Task) -> Callable[[], bool]:
        slices.announce(step, *task)
        return slices.meet()

    return meet


def _mailbox(job: Job, layout: Layout, mesh: Mesh, device: Emulated, clock_shifts: Mapping[int, int]) -> Mailbox:
    place, delay = mesh.place, delay_model(job.variability)
    seed = seed_of_slice(job.variability.seed, place.slice)
    wanted = inlets(layout, place.stage, ahead=ahead_of(job, device))
    if delay is None:
        return Mailbox(mesh, inlets=wanted, payload_bytes=layout.boundary_bytes, memory=device)

    def when(neighbour: Neighbour, header: Header) -> int:
        task = Task(neighbour.feeds, header.microbatch, neighbour.chunk)
        source = neighbour.peer // (place.data * place.tensor)
        where = {"seed": seed, "step": header.step, "source": source, "target": place.stage}
        wait = delay.of(header.sent, task=task, **where)
        return header.sent + clock_shifts[neighbour.peer] + round(wait)

    return LateMailbox(
        mesh,
        inlets=wanted,
        payload_bytes=layout.boundary_bytes,
        memory=device,
        when=when,
        overtaking=delay.overtaking,
    )
