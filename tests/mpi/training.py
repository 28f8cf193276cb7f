"""Help for tests that train: jobs like the quickstart, runs on part of the ranks, a reference without a pipeline."""

import json
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from hpcpipe.data import Batches, Deal, Order, Windows, held_out, open_text
from hpcpipe.job import load_job
from hpcpipe.models import build, language_layers, next_token_loss
from hpcpipe.runtime import World
from hpcpipe.train import Origin, train

JOB = """
[job]
name = "test"
steps = 20
[model]
kind = "gpt"
layers = 4
dim = 32
heads = 4
context = 32
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[batch]
microbatches = 6
microbatch_size = 2
[optimizer]
lr = 1e-3
warmup = 5
schedule = "cosine"
[events]
on = false
"""
LOGGED = "events.on=true"
"""For what looks at the event log: making one takes longer than a short training."""


def needs(comm, ranks):
    """Skip a test for which there are too few ranks, or that trains on one or two of more than two."""
    if ranks > comm.size:
        pytest.skip(f"needs {ranks} ranks")
    if ranks <= 2:
        on_two(comm)


def on_two(comm):
    """Skip a test on more than two ranks: on two it has the same kinds of messages, and the cores for itself.

    `make test-mpi` runs all tests on two ranks and on four.
    """
    if comm.size > 2:
        pytest.skip("two ranks show it")


def on_four(comm):
    """Skip a test on fewer than four ranks, where it has fewer kinds of messages."""
    if comm.size < 4:
        pytest.skip("four ranks show it")


def load(folder: Path, *overrides: str, text: str = JOB):
    """Return the test job, or another one, with some values changed."""
    path = folder / "job.toml"
    path.write_text(text)
    return load_job(path, overrides)


def train_on(comm, folder: Path, *overrides: str, before_step=lambda _step, _rank: None, text: str = JOB):
    """Train a job with some values changed, as `train_job` does."""
    return train_job(comm, folder, load(folder, *overrides, text=text), before_step=before_step)


def train_job(comm, folder: Path, job, *, before_step=lambda _step, _rank: None):
    """Train on the first ranks of `comm`; return (losses, this stage's parameters, rank), None on the other ranks.

    Losses of evaluations follow those of the steps.
    """
    rest(comm)
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    result = None
    if comm.rank < job.parallel.ranks:
        world = World(part)
        run_directory = Path(world.share(str(folder / f"run-{len(list(folder.iterdir()))}")))
        run_directory.mkdir(exist_ok=True)
        world.barrier()
        ranks = []

        def look(step, rank):
            ranks.append(rank)
            before_step(step, rank)

        outcome = train(job, world=world, run_directory=run_directory, origin=Origin(), before_step=look)
        assert outcome.exit_code == 0
        world.barrier()
        lines = (run_directory / "metrics.jsonl").read_text().splitlines()
        losses = [json.loads(line)["loss"] for line in lines] + [loss for _, loss in outcome.evaluations]
        rank = ranks[-1]
        result = losses, [p.detach().clone() for module in rank.modules for p in module.parameters()], rank
    part.Free()
    rest(comm)
    return result


def rest(comm):
    """Wait for all ranks without using the core that the others compute on."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def reference(job, clipped=lambda net: [list(net.parameters())]):
    """Train without pipeline, buckets or engine: torch alone, the micro-batches' gradients added in order.

    `clipped` are the lists of parameters whose gradients are clipped together. The net has the norms of each step.
    """
    model, data, batch = job.model, job.data, job.batch
    layers = language_layers(model, seq_len=data.seq_len)
    net = torch.nn.Sequential(*build(layers, range(len(layers)), seed=job.run.seed))
    if model.tied:
        net[-1].project.weight = net[0].token.weight
    count = batch.microbatches * job.parallel.data
    windows = Windows(open_text(data.resolved_path), seq_len=data.seq_len)
    order = Order(len(windows) - held_out(len(windows), data.eval_fraction), seed=data.seed)
    deal = Deal(order, microbatches=count, size=batch.microbatch_size, replica=0, replicas=1)
    batches = Batches(windows, deal, steps=job.run.steps)
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    others = [p for p in net.parameters() if p.ndim < 2]
    settings = job.optimizer
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.name == "sgd":
        optimizer = torch.optim.SGD(groups, momentum=settings.momentum, **common)
    else:
        rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.name]
        optimizer = rule(groups, betas=settings.betas, eps=settings.eps, **common)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / settings.warmup, total_iters=settings.warmup - 1)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.run.steps - settings.warmup)
    rates = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [settings.warmup])
    loss_of = partial(next_token_loss, tokens=count * batch.microbatch_size * data.seq_len)
    losses, net.norms = [], []
    clip = 1e30 if settings.clip == "off" else settings.clip
    for step in range(job.run.steps):
        batches.load(step)
        optimizer.zero_grad()
        total = 0.0
        for microbatch in range(count):
            loss = loss_of(net(batches.inputs(microbatch)), batches.targets(microbatch))
            loss.backward()
            total += loss.item()
        losses.append(total)
        net.norms.append([torch.nn.utils.clip_grad_norm_(group, clip).item() for group in clipped(net)])
        optimizer.step()
        rates.step()
    return losses, net
