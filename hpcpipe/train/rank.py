"""Everything one rank needs to train, built from the job and put together; released in the opposite order."""

from collections.abc import Callable
from functools import partial

from torch import nn

from hpcpipe.data import TextBatches
from hpcpipe.device import Cpu
from hpcpipe.events import EventWriter
from hpcpipe.job import Job
from hpcpipe.job.schema import Gpt, Text
from hpcpipe.models import build, next_token_loss
from hpcpipe.plan import derive_seed
from hpcpipe.runtime import Engine, Mailbox, Mesh, Stage, Waiting
from hpcpipe.train.accumulate import Accumulator
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.layout import Layout
from hpcpipe.train.optimizer import make_optimizer
from hpcpipe.train.schedule import learning_rate


class NoLog:
    """Stands where the event log would be when `[events].on` is false."""

    def event(self, *args: int, **kwargs: int) -> None:
        """Forget the event."""


class Rank:
    """One rank's stage, buckets, mailbox and engine."""

    def __init__(
        self, job: Job, layout: Layout, *, mesh: Mesh, device: Cpu, waiting: Waiting, recorder: EventWriter | NoLog
    ) -> None:
        place = mesh.place
        self.rate = partial(
            learning_rate,
            peak=job.optimizer.lr,
            schedule=job.optimizer.schedule,
            warmup=job.optimizer.warmup,
            steps=job.run.steps,
        )
        self.modules = build(layout.layers, layout.stages[place.stage], seed=job.run.seed)
        layers = nn.ModuleList(self.modules)
        parameters = [p for p in layers.parameters() if p.requires_grad]  # torch lists a shared one once
        self.buckets = FusionBuckets(
            parameters,
            comm=mesh.replicas,
            bucket_bytes=int(job.comm.bucket_mb * 1e6),
            make_optimizer=partial(make_optimizer, job),
            rate=self.rate,
        )
        self.accumulator = Accumulator(
            self.buckets.add, microbatches=job.batch.microbatches, ordered=job.schedule.accumulate == "ordered"
        )
        self.stage = _make_stage(job, layout, mesh, self.modules, parameters, self.accumulator)
        self.mailbox = _make_mailbox(job, layout, mesh, device)
        self.engine = Engine(
            stage=self.stage,
            mailbox=self.mailbox,
            buckets=self.buckets,
            recorder=recorder,
            waiting=waiting,
            make_plan=partial(
                layout.schedule(job).stage_plan, place.stage, buckets=len(self.buckets), replicated=place.data > 1
            ),
        )

    def free(self) -> None:
        """Complete what is under way and free all requests (collective)."""
        self.engine.drain()
        self.mailbox.free()
        self.buckets.free()


def _make_stage(
    job: Job,
    layout: Layout,
    mesh: Mesh,
    modules: list[nn.Module],
    parameters: list[nn.Parameter],
    sink: Accumulator,
) -> Stage:
    assert isinstance(job.data, Text)
    assert isinstance(job.model, Gpt)
    place, batch = mesh.place, job.batch
    batches = None
    if place.first or place.last:
        batches = TextBatches(
            job.data.resolved_path,
            seq_len=job.data.seq_len,
            seed=job.data.seed,
            microbatches=batch.microbatches,
            microbatch_size=batch.microbatch_size,
            replica=place.replica,
            replicas=place.data,
        )
    return Stage(
        modules,
        parameters=parameters,
        batches=batches,
        first=place.first,
        loss=partial(next_token_loss, tokens=tokens_per_step(job)) if place.last else None,
        sink=sink,
        seeds=_dropout_seeds(job, layout, mesh) if job.model.dropout > 0 else None,
    )


def _dropout_seeds(job: Job, layout: Layout, mesh: Mesh) -> Callable[[int, int, int], int]:
    """Seed every layer's dropout by its place in the whole model and batch, so that its bits depend on no layout."""
    first_layer = layout.stages[mesh.place.stage].start
    first_microbatch = mesh.place.replica * job.batch.microbatches

    def seed(step: int, position: int, microbatch: int) -> int:
        return derive_seed(job.run.seed, "dropout", step, first_layer + position, first_microbatch + microbatch)

    return seed


def _make_mailbox(job: Job, layout: Layout, mesh: Mesh, device: Cpu) -> Mailbox:
    stage, slots = mesh.place.stage, job.comm.slots
    bounds = layout.bounds if isinstance(slots, str) else [slots] * len(layout.bounds)
    return Mailbox(
        mesh,
        forward_slots=bounds[max(stage - 1, 0)],
        backward_slots=bounds[stage],
        payload_bytes=layout.boundary_bytes,
        allocator=device,
    )


def tokens_per_step(job: Job) -> int:
    """Return the tokens of the global batch."""
    assert isinstance(job.data, Text)
    return job.batch.microbatches * job.batch.microbatch_size * job.parallel.data * job.data.seq_len
