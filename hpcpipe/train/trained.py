"""The work of a rank that trains: layers, loss and data with torch, gradients in fusion buckets."""

from collections.abc import Callable
from functools import partial

from torch import nn

from hpcpipe.data import TextBatches
from hpcpipe.device.cpu import Cpu
from hpcpipe.job import Job
from hpcpipe.job.schema import Gpt, Text
from hpcpipe.models import build, next_token_loss
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.recompute import run_layers
from hpcpipe.plan import derive_seed
from hpcpipe.runtime import Mailbox, Mesh
from hpcpipe.runtime.stage import Chunk, Stage
from hpcpipe.train.accumulate import Accumulator
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.layout import Layout, tokens_per_step
from hpcpipe.train.optimizer import make_optimizer
from hpcpipe.train.schedule import rate_of
from hpcpipe.train.ties import find_ties
from hpcpipe.train.work import Work, inlets


def trained_work(job: Job, layout: Layout, *, mesh: Mesh, device: Cpu) -> Work:
    """Build the parts of this rank."""
    place, schedule = mesh.place, layout.schedule
    built = [build(layout.layers, piece, seed=job.run.seed) for piece in layout.pieces[place.stage]]
    if schedule.split:
        for modules in built:
            for module in modules:
                deferrable(module)
    parameters = [  # torch lists a shared one once
        [p for p in nn.ModuleList(modules).parameters() if p.requires_grad] for modules in built
    ]
    buckets = FusionBuckets(
        parameters,
        comm=mesh.replicas,
        bucket_bytes=int(job.comm.bucket_mb * 1e6),
        make_optimizer=partial(make_optimizer, job),
        rate=rate_of(job),
        ties=find_ties(layout.layers, layout.pieces, built, parameters, mesh=mesh),
    )
    accumulators = [
        Accumulator(partial(buckets.add, chunk), microbatches=job.batch.microbatches, ordered=schedule.ordered)
        for chunk in range(len(built))
    ]
    chunks = []
    for number, (modules, trained, sink) in enumerate(zip(built, parameters, accumulators, strict=True)):
        virtual = schedule.placement.virtual(place.stage, number)
        last = virtual == schedule.placement.virtual_stages - 1
        chunks.append(
            Chunk(
                modules,
                trained,
                first=virtual == 0,
                loss=partial(next_token_loss, tokens=tokens_per_step(job)) if last else None,
                sink=sink,
                seeds=_dropout_seeds(job, layout, mesh, number),
                call=partial(run_layers, recompute=layout.recomputed(layout.pieces[place.stage][number])),
            )
        )
    has_data = any(chunk.first or chunk.loss is not None for chunk in chunks)
    return Work(
        stage=Stage(
            chunks, batches=_batches(job, mesh) if has_data else None, recording=recording if schedule.split else None
        ),
        buckets=buckets,
        mailbox=Mailbox(mesh, inlets=inlets(layout, place.stage), payload_bytes=layout.boundary_bytes, memory=device),
        modules=[module for modules in built for module in modules],
        accumulators=accumulators,
    )


def _batches(job: Job, mesh: Mesh) -> TextBatches:
    data, batch = job.data, job.batch
    assert isinstance(data, Text)
    return TextBatches(
        data.resolved_path,
        seq_len=data.seq_len,
        seed=data.seed,
        microbatches=batch.microbatches,
        microbatch_size=batch.microbatch_size,
        replica=mesh.place.replica,
        replicas=mesh.place.data,
    )


def _dropout_seeds(job: Job, layout: Layout, mesh: Mesh, chunk: int) -> Callable[[int, int, int], int] | None:
    """Seed every layer's dropout by its place in the whole model and batch, so that its bits depend on no layout."""
    assert isinstance(job.model, Gpt)
    if not job.model.dropout:
        return None
    first_layer = layout.pieces[mesh.place.stage][chunk].start
    first_microbatch = mesh.place.replica * job.batch.microbatches

    def seed(step: int, position: int, microbatch: int) -> int:
        return derive_seed(job.run.seed, "dropout", step, first_layer + position, first_microbatch + microbatch)

    return seed
