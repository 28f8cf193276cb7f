"""The work of a rank that trains: layers, loss and data with torch, gradients in fusion buckets."""

from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import nn

from hpcpipe.device.cpu import Cpu
from hpcpipe.device.cuda import Cuda
from hpcpipe.job import Job
from hpcpipe.models import build
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.recompute import run_layers
from hpcpipe.plan import derive_seed
from hpcpipe.runtime import Mailbox, Mesh
from hpcpipe.runtime.channel import Memory
from hpcpipe.runtime.stage import Batches, Chunk, Stage
from hpcpipe.train.accumulate import Accumulator
from hpcpipe.train.admission import AdmittedBatches, admission_of
from hpcpipe.train.batches import batches_of
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.collectives import backend_of
from hpcpipe.train.evaluate import Evaluator
from hpcpipe.train.grouping import Grouped, Groupings
from hpcpipe.train.launched import UploadedBatches
from hpcpipe.train.layout import Layout
from hpcpipe.train.model import model_of
from hpcpipe.train.norm import make_norm
from hpcpipe.train.optimizer import make_optimizer
from hpcpipe.train.precision import ConvertedInputs, convert_frozen, types_of
from hpcpipe.train.scaler import LossScale
from hpcpipe.train.schedule import rate_of
from hpcpipe.train.tensor import counts_here
from hpcpipe.train.ties import find_ties
from hpcpipe.train.work import Work, ahead_of, inlets

if TYPE_CHECKING:
    from hpcpipe.collective.tensor import TensorGroup
    from hpcpipe.data import Batches as DataBatches


def trained_work(
    job: Job,
    layout: Layout,
    *,
    mesh: Mesh,
    device: Cpu | Cuda,
    slices: "TensorGroup | None",
    groupings: "Groupings",
) -> Work:
    """Build the parts of this rank. Layers are made on the CPU, so that a GPU begins with the same values."""
    place, schedule, model = mesh.place, layout.schedule, model_of(job)
    built = [build(layout.layers, piece, seed=job.run.seed, slices=slices) for piece in layout.pieces[place.stage]]
    if model.release is not None:
        last = schedule.placement.owner(schedule.placement.virtual_stages - 1)[0]
        model.release(keep_loss=place.stage == last)
    compiles = getattr(job.device, "compile", False)
    for modules in built:
        for module in modules:
            module.to(device.device)
            if compiles:
                module.compile()
            elif schedule.split:
                deferrable(module)
    types, scale = types_of(job), LossScale(job.precision.first_scale, dynamic=job.precision.dynamic_scale)
    for modules in built:
        convert_frozen(modules, types.compute)
    norm = make_norm(job, mesh, scale)
    parameters = [  # torch lists a shared one once
        [p for p in nn.ModuleList(modules).parameters() if p.requires_grad] for modules in built
    ]
    buckets = FusionBuckets(
        parameters,
        comm=mesh.replicas,
        bucket_bytes=job.comm.bucket_bytes,
        make_optimizer=partial(make_optimizer, job),
        rate=rate_of(job),
        ties=find_ties(layout.layers, layout.pieces, built, parameters, mesh=mesh),
        types=types,
        norm=norm,
        scale=scale,
        counts=partial(counts_here, place),
        gathers_early=job.gathers_early,
        # layers compute in the thread that polls; on one node it may not take a core of theirs to move messages beside
        progress="poll" if mesh.one_node else "auto",
        backend=backend_of(job, device),
    )
    if slices is not None:
        slices.beside = buckets.advance
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
                loss=model.loss_over(slices) if last else None,
                sink=sink,
                seeds=_dropout_seeds(job, layout, mesh, number, groupings) if model.random else None,
                call=partial(run_layers, recompute=layout.recomputed(layout.pieces[place.stage][number])),
                scale=(lambda: scale.value) if job.precision.dynamic_scale or scale.value != 1.0 else None,
            )
        )
    _take_a_gradient(recomputes=any(map(layout.recomputed, layout.pieces[place.stage])))
    has_loss, has_input = any(chunk.loss is not None for chunk in chunks), any(chunk.first for chunk in chunks)
    batches: Batches | None = None
    if has_loss or has_input:  # only the loss counts targets
        count = model.count if has_loss else None
        read = batches_of(job, replica=place.replica, inputs=has_input, count=count, total=model.total)
        order = admission_of(job, model, schedule=schedule, pieces=layout.pieces, replica=place.replica)
        batches = admitted = read if order is None else AdmittedBatches(read, order)
        groupings.follow(partial(_follow, read, admitted, place.replica))
    if batches is not None and types.compute != torch.float32:
        batches = ConvertedInputs(batches, types.compute)
    gpu = device if isinstance(device, Cuda) else None
    if batches is not None and gpu is not None:
        batches = UploadedBatches(batches, gpu)
    stage = Stage(
        chunks,
        batches=batches,
        recording=recording if schedule.split else None,
        device=gpu,
        announce=None if slices is None else (lambda step, task: slices.announce(step, *task)),
    )
    if norm is not None:
        norm.sound = lambda: isfinite(stage.loss())
    memory: Memory = device.memory if isinstance(device, Cuda) else device
    wanted = inlets(layout, place.stage, ahead=ahead_of(job, device))
    evaluates = getattr(job.data, "evaluates", False)
    return Work(
        stage=stage,
        buckets=buckets,
        mailbox=Mailbox(mesh, inlets=wanted, payload_bytes=layout.boundary_bytes, memory=memory),
        evaluate=Evaluator(job, layout, model, chunks, mesh=mesh, memory=memory, gpu=gpu) if evaluates else None,
        modules=[module for modules in built for module in modules],
        accumulators=accumulators,
        parameters=parameters,
        losses=stage.losses,
        scale=scale,
    )


def _take_a_gradient(*, recomputes: bool) -> None:
    """Take a gradient before the first step, because torch loads with its first one what that step would be charged."""
    one = torch.ones(1, requires_grad=True)
    square = run_layers([torch.square], one, recompute=[range(1)] if recomputes else [])
    torch.autograd.grad([square], [one], [torch.ones(1)])


def _follow(read: "DataBatches", admitted: Batches, replica: int, step: int, grouped: Grouped) -> None:
    """Let micro-batches be cut and admitted otherwise from a step on."""
    job, layout = grouped.job, grouped.layout
    read.cut(step, microbatches=job.batch.microbatches, size=job.batch.microbatch_size)
    if isinstance(admitted, AdmittedBatches):
        model = model_of(job)
        order = admission_of(job, model, schedule=layout.schedule, pieces=layout.pieces, replica=replica)
        assert order is not None
        admitted.change(step, order)


def _dropout_seeds(
    job: Job, layout: Layout, mesh: Mesh, chunk: int, groupings: Groupings
) -> Callable[[int, int, int], int]:
    """Seed every layer's dropout by its place in the whole model and batch, so that its bits depend on no layout."""
    first_layer = layout.pieces[mesh.place.stage][chunk].start

    def seed(step: int, position: int, microbatch: int) -> int:
        first_microbatch = mesh.place.replica * groupings.at(step).microbatches
        return derive_seed(job.run.seed, "dropout", step, first_layer + position, first_microbatch + microbatch)

    return seed
