"""Everything one rank needs to train, built from the job and put together; released in the opposite order."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import Manifest
from hpcpipe.device import Emulated
from hpcpipe.events import EventWriter
from hpcpipe.events.recording import ReplayError
from hpcpipe.job import Job
from hpcpipe.plan import FLAG_REPLAYED, StagePlan
from hpcpipe.runtime import Engine, Mesh, Waiting
from hpcpipe.runtime.engine import Buckets as EngineBuckets
from hpcpipe.runtime.pulse import Pulse
from hpcpipe.train.collectives import tensor_group
from hpcpipe.train.grouping import Grouped, Groupings, first_grouping, grouped
from hpcpipe.train.layout import Layout
from hpcpipe.train.regroup import space_for
from hpcpipe.train.replay import Replay
from hpcpipe.train.sources import schedule_source
from hpcpipe.train.tensor import agreement_of
from hpcpipe.train.work import ahead_of, computes_in_this_thread, make_work

if TYPE_CHECKING:
    from hpcpipe.device.cpu import Cpu
    from hpcpipe.device.cuda import Cuda


_LARGE_MESSAGE = 1 << 16
"""Bytes; what is smaller MPI sends at once, without asking the receiver."""


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
        device: "Cpu | Cuda | Emulated",
        waiting: Waiting,
        recorder: EventWriter | NoLog,
        clock_shifts: Mapping[int, int],
        replay: Replay | None = None,
        resumed: Manifest | None = None,
    ) -> None:
        self._replay, self.place = replay, mesh.place
        start = first_grouping(job, resumed, space=space_for)
        self.begun = () if start is None else (start,)
        """What was decided about the grouping of the first step."""
        first = Grouped(job, layout) if start is None else grouped(job, layout, start.grouping)
        self.groupings = Groupings(first)
        self._has_norm, self._phased = job.has_norm, not job.comm.split_allreduce
        self.source = schedule_source(
            job,
            layout.schedule,
            recorder,
            groupings=self.groupings,
            place=mesh.place,
            clock_shifts=clock_shifts,
            replayed=replay is not None,
        )
        self.slices = tensor_group(job, mesh, waiting, device)
        work = make_work(
            first.job,
            first.layout,
            mesh=mesh,
            device=device,
            slices=self.slices,
            clock_shifts=clock_shifts,
            groupings=self.groupings,
        )
        self.stage = work.stage
        self.buckets = work.buckets
        self.mailbox = work.mailbox
        self.evaluator = work.evaluate
        self.modules = work.modules
        self.accumulators = work.accumulators
        self.parameters = work.parameters
        self.losses = work.losses
        self.scale = work.scale
        self._repeats = False
        if replay is not None and replay.recording.buckets != len(self.buckets):
            raise ReplayError(f"{replay.source} has {replay.recording.buckets} buckets, this rank {len(self.buckets)}")
        blocks = computes_in_this_thread(device)
        self.agreement = agreement_of(job, mesh, replayed=replay is not None, blocks=blocks)
        self._pulse: Pulse | None = None
        if blocks and not mesh.one_node and layout.boundary_bytes >= _LARGE_MESSAGE:
            self._pulse = Pulse(mesh.world)
        self.engine = Engine(
            stage=self.stage,
            mailbox=self.mailbox,
            buckets=self._launched(device),
            recorder=self.source.recorder,
            waiting=waiting,
            number=mesh.place.stage,
            make_plan=self._plan,
            flags=0 if replay is None else FLAG_REPLAYED,
            dispatch=self.agreement,
            computing=self._pulse,
            ahead=ahead_of(job, device),
        )

    @property
    def loss(self) -> float:
        """The rank's share of the step's loss, which every slice of the last stage knows and the first one tells."""
        return self.stage.loss() if self.place.slice == 0 else 0.0

    def repeat(self, step: int) -> None:
        """Compute the gradients of the last step once more (collective), without updates and without events.

        All ranks have left the step and gathered its parameters.
        """
        self._repeats = True
        try:
            with self.engine.unrecorded(NoLog()):
                self.engine.run_step(step)
        finally:
            self._repeats = False

    def _launched(self, device: "Cpu | Cuda | Emulated") -> EngineBuckets:
        """Return the buckets as the engine drives them."""
        if isinstance(device, Emulated) or device.threads:
            return self.buckets
        from hpcpipe.device.cuda import Cuda
        from hpcpipe.train.launched import LaunchedBuckets

        assert isinstance(device, Cuda)
        return LaunchedBuckets(self.buckets, device)

    def _plan(self, step: int, gathering: Collection[int]) -> StagePlan:
        if self._replay is not None and not self._repeats:
            self._replay.prepare(step, self.groupings)
        schedule = self.source.of(step)
        for accumulator in self.accumulators:
            accumulator.microbatches = schedule.microbatches
        if self._repeats:
            return schedule.stage_plan(self.place.stage)
        return schedule.stage_plan(
            self.place.stage,
            buckets=self.buckets.chunks,
            replicated=self.place.data > 1,
            tied=self.buckets.tied,
            gathering=gathering,
            norm=self._has_norm,
            phased=self._phased,
            eager=self.buckets.early,
            recorded=None if self._replay is None else self._replay.recording.order(step),
        )

    def free(self) -> None:
        """Complete what is under way and free all requests (collective)."""
        if self._pulse is not None:
            self._pulse.close()
        self.engine.drain()
        self.mailbox.free()
        if self.evaluator is not None:
            self.evaluator.free()
        self.buckets.free()
        if self.slices is not None:
            self.slices.free()
