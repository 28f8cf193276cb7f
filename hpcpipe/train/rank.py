"""Everything one rank needs to train, built from the job and put together; released in the opposite order."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpcpipe.events import EventWriter
from hpcpipe.job import Job
from hpcpipe.runtime import Engine, Mesh, Waiting
from hpcpipe.train.layout import Layout
from hpcpipe.train.measured import schedule_source
from hpcpipe.train.work import make_work

if TYPE_CHECKING:
    from hpcpipe.device import Emulated
    from hpcpipe.device.cpu import Cpu


class NoLog:
    """Stands where the event log would be when `[events].on` is false."""

    def event(self, *args: int, **kwargs: int) -> None:
        """Forget the event."""


class Rank:
    """One rank's stage, buckets, mailbox and engine."""

    def __init__(
        self,
        job: Job,
        layout: Layout,
        *,
        mesh: Mesh,
        device: "Cpu | Emulated",
        waiting: Waiting,
        recorder: EventWriter | NoLog,
        clock_shifts: Mapping[int, int],
    ) -> None:
        place = mesh.place
        self.source = schedule_source(layout.schedule, recorder, place=place, clock_shifts=clock_shifts)
        work = make_work(job, layout, mesh=mesh, device=device, clock_shifts=clock_shifts)
        self.stage = work.stage
        self.buckets = work.buckets
        self.mailbox = work.mailbox
        self.modules = work.modules
        self.accumulators = work.accumulators
        self.engine = Engine(
            stage=self.stage,
            mailbox=self.mailbox,
            buckets=self.buckets,
            recorder=self.source.recorder,
            waiting=waiting,
            number=place.stage,
            make_plan=lambda: self.source.schedule.stage_plan(
                place.stage, buckets=len(self.buckets), replicated=place.data > 1
            ),
        )

    def free(self) -> None:
        """Complete what is under way and free all requests (collective)."""
        self.engine.drain()
        self.mailbox.free()
        self.buckets.free()
