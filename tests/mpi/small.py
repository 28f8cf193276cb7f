"""Help for tests of the engine with models of a few small modules: a pipeline of them, and torch alone on the same.

A model is a list of modules, each called with what the one before it returned. Delays are drawn, differently on every
rank, so that every run has another timing.
"""

import random
import time
from functools import partial

import torch
from training import rest

from hpcpipe.device.cpu import Cpu
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.plan import Limits, Placement, Schedule
from hpcpipe.plan.caps import limits_for
from hpcpipe.plan.hints import FAMILIES, SPLIT, placement_of
from hpcpipe.plan.slots import sources
from hpcpipe.runtime import Engine, Inlet, Mailbox, Mesh, Waiting
from hpcpipe.runtime.stage import Chunk, Stage
from hpcpipe.train.accumulate import Accumulator
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.rank import NoLog

RATE = 0.05


class Data:
    """Micro-batches from a function (step, micro-batch) -> (input, target)."""

    def __init__(self, draw):
        self._draw = draw
        self._step = -1

    def load(self, step):
        self._step = step

    def inputs(self, microbatch):
        return self._draw(self._step, microbatch)[0]

    def targets(self, microbatch):
        return self._draw(self._step, microbatch)[1]


def plain(model, draw, loss, *, steps, microbatches):
    """Return the losses and parameters of a loop without pipeline or engine."""
    layers = model()
    parameters = [p for layer in layers for p in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=RATE)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = 0.0
        for microbatch in range(microbatches):
            value, target = draw(step, microbatch)
            for layer in layers:
                value = layer(value)
            share = loss(value, target)
            if share.requires_grad:
                share.backward()
            total += share.item()
        optimizer.step()
        losses.append(total)
    return losses, [p.detach() for p in parameters]


def schedule_of(hint, dispatch, stages, microbatches):
    """Return a schedule with twice 1F1B's memory, so that tasks have much room to change places."""
    placement = placement_of(hint, stages=stages, chunks=FAMILIES[hint].chunks or 2) if hint in FAMILIES else None
    placement = placement or Placement(stages)
    limits = (Limits(),) * stages
    split = hint in SPLIT
    if dispatch == "ready":
        stash = "2x" if split else None
        limits = limits_for(
            placement, hint=hint, microbatches=microbatches, split=split, in_flight="2x", stash=stash, k=None
        )
    return Schedule(hint, dispatch, placement, microbatches, limits, split=split)


def pipelined(comm, model, draw, loss, *, stages, hint, dispatch, steps, microbatches, seed=0, recorder=None):
    """Train on the first `stages` ranks; return what `plain` does, on all ranks."""
    part = comm.Split(comm.rank >= stages, comm.rank)
    losses, mine = [], {}
    if comm.rank < stages:
        mesh = Mesh(part, pipeline=stages, data=1, tensor=1)
        losses, mine = _train(
            mesh, model, draw, loss, schedule_of(hint, dispatch, stages, microbatches), steps, seed, recorder
        )
        mesh.free()
    part.Free()
    rest(comm)
    gathered = comm.allgather((losses, mine))
    summed = [sum(each) for each in zip(*(losses for losses, _ in gathered if losses), strict=True)]
    parameters = {key: value for _, found in gathered for key, value in found.items()}
    return summed, [parameters[key] for key in sorted(parameters)]


def _train(mesh, model, draw, loss, schedule, steps, seed, recorder):
    stage, placement = mesh.place.stage, schedule.placement
    layers = model()
    virtual = [placement.virtual(stage, chunk) for chunk in range(placement.chunks)]
    cuts = [len(layers) * v // placement.virtual_stages for v in range(placement.virtual_stages + 1)]
    pieces = [layers[cuts[v] : cuts[v + 1]] for v in virtual]
    if schedule.split:
        for layer in layers:
            deferrable(layer)
    parameters = [[p for layer in piece for p in layer.parameters()] for piece in pieces]
    buckets = FusionBuckets(
        parameters,
        comm=mesh.replicas,
        bucket_bytes=500,
        make_optimizer=lambda parameter, _decay: torch.optim.SGD([parameter], lr=RATE),
        rate=lambda _step: RATE,
    )
    chunks = [
        Chunk(
            piece,
            trained,
            first=v == 0,
            loss=loss if v == placement.virtual_stages - 1 else None,
            sink=Accumulator(partial(buckets.add, number), microbatches=schedule.microbatches, ordered=True),
        )
        for number, (v, piece, trained) in enumerate(zip(virtual, pieces, parameters, strict=True))
    ]
    part = Stage(chunks, batches=Data(draw), recording=recording if schedule.split else None)
    _delay(part, random.Random(f"{seed}/{stage}"))
    engine = Engine(
        stage=part,
        mailbox=(
            mailbox := Mailbox(
                mesh,
                inlets=[Inlet(*source) for source in sources(schedule, stage)],
                payload_bytes=0,
                memory=Cpu(sharing_ranks=4),
            )
        ),
        buckets=buckets,
        recorder=recorder or NoLog(),
        waiting=Waiting("sleep"),
        number=stage,
        make_plan=lambda _step, gathering: schedule.stage_plan(stage, buckets=buckets.chunks, gathering=gathering),
    )
    losses = []
    for step in range(steps):
        engine.run_step(step)
        losses.append(part.loss())
    engine.drain()
    rest(mesh.world)
    mailbox.free()
    buckets.free()
    named = {}
    for v, piece in zip(virtual, pieces, strict=True):
        for position, layer in enumerate(piece):
            named |= {(cuts[v] + position, i): p.detach().clone() for i, p in enumerate(layer.parameters())}
    return losses, named


def _delay(part, draws):
    start = part.start

    def slow(*arguments):
        if draws.random() < 0.2:
            time.sleep(draws.random() * 0.005)
        return start(*arguments)

    part.start = slow
