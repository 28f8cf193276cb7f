"""A training that goes on from a checkpoint: the same bits in the same layout, the same curve in any other."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layers import disturb
from training import load, needs, on_four, rest

from hpcpipe.checkpoint import (
    DTYPES,
    CheckpointError,
    Reader,
    Resume,
    list_steps,
    make_partial,
    merge_parts,
    read_manifest,
    write_part,
)
from hpcpipe.models import Layer
from hpcpipe.runtime import Place, StopWish, World
from hpcpipe.train import Origin, choose_together, saver, train
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.held import Holdings
from hpcpipe.train.resume import manifest_of

TYPES = {code: getattr(torch, name) for code, name in DTYPES.items()}
STEPS, HALF = 8, 4
BASE = (f"job.steps={STEPS}", f"checkpoint.every={HALF}", "model.layers=8", "model.dim=16", "comm.bucket_mb=0.02")


def run(comm, folder, *overrides, resume=None, before_step=lambda _step, _rank: None):
    """Train on the first ranks; return the run's folder and its metrics by step on all ranks."""
    directory = Path(World(comm).share(str(folder / f"run-{len(list(folder.iterdir()))}")))
    job = load(folder, *BASE, *overrides)
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    if comm.rank < job.parallel.ranks:
        world = World(part)
        directory.mkdir(exist_ok=True)
        world.barrier()
        start = None if resume is None else Resume(resume, read_manifest(resume))
        options = {"run_directory": directory, "origin": Origin(), "before_step": before_step, "resume": start}
        assert train(job, world=world, **options).exit_code == 0
    part.Free()
    rest(comm)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(STEPS))
    return directory, lines


def contents(checkpoint):
    """Return all tensors of a checkpoint, whole, by kind and name."""
    reader = Reader(checkpoint)
    manifest = reader.manifest
    kinds = {"model": manifest.parameters, **manifest.state}
    return {
        (kind, name): torch.from_numpy(reader.elements(name, entry).view("u1"))
        .view(TYPES[entry.dtype])
        .view(entry.shape)
        for kind, tensors in kinds.items()
        for name, entry in tensors.items()
    }


def step_of(directory, step):
    return directory / "checkpoints" / f"step_{step:08d}"


def layout(pipeline, data=1, *more):
    return (f"parallel.pipeline={pipeline}", f"parallel.data={data}", f"batch.microbatches={8 // data}", *more)


SAME = [
    ("pipeline", lambda n: layout(n, 1, "model.dropout=0.2")),
    ("replicas", lambda n: layout(n // 2, 2, "model.dropout=0.2", "model.tied=true")),
    ("chunks", lambda n: layout(n, 1, "schedule.hint='zbv'", "model.tied=true")),
    ("half", lambda n: layout(n // 2, 2, "precision.compute='bf16'", "optimizer.clip=0.5")),
    ("momentum", lambda n: layout(n // 2, 2, "optimizer.name='sgd'", "optimizer.momentum=0.9", "optimizer.lr=0.1")),
]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("settings", [each for _, each in SAME], ids=[name for name, _ in SAME])
def test_the_same_layout_goes_on_with_the_same_bits(comm, tmp_path, settings):
    on_four(comm)
    overrides = settings(min(comm.size, 4))
    whole, losses = run(comm, tmp_path, *overrides)
    again, others = run(comm, tmp_path, *overrides, resume=step_of(whole, HALF), before_step=disturb(5))
    one, other = contents(step_of(whole, STEPS)), contents(step_of(again, STEPS))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert [line["loss"] for line in losses] == [line["loss"] for line in others]
    assert [line["lr"] for line in losses] == [line["lr"] for line in others]
    assert read_manifest(step_of(again, STEPS)).restarts == 1
    kinds = {kind for kind, _ in one}
    assert kinds >= ({"model", "momentum_buffer"} if "momentum" in overrides[-2] else _ADAM)
    assert ("master" in kinds) == any("bf16" in each for each in overrides), "fp32 values where it computes in others"


_ADAM = {"model", "exp_avg", "exp_avg_sq", "step"}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("tied", [False, True])
def test_any_other_layout_continues_the_curve(comm, tmp_path, tied):
    on_four(comm)
    size = min(comm.size, 4)
    more = ("model.dropout=0.2", f"model.tied={str(tied).lower()}")
    saved = layout(size, 1, *more) if tied else layout(size // 2, 2, *more)
    whole, losses = run(comm, tmp_path, *saved)
    end = contents(step_of(whole, STEPS))
    others = [layout(1, 1, *more), layout(2, 1, "schedule.hint='zbv'", *more), layout(size // 2, 2, *more)]
    others += [layout(1, size, *more)]
    for other in others:
        again, curve = run(comm, tmp_path, *other, resume=step_of(whole, HALF))
        assert [line["loss"] for line in curve] == pytest.approx([line["loss"] for line in losses], rel=1e-6), other
        found = contents(step_of(again, STEPS))
        assert found.keys() == end.keys()
        for key, value in end.items():
            torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5, msg=f"{key} {other}")


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_cannot_write_changes_nothing_for_the_training(comm, tmp_path, monkeypatch, capfd):
    needs(comm, 2)
    settings = layout(2, 1, "checkpoint.every=1")
    plain, losses = run(comm, tmp_path, *settings)

    def full(*_, **__):
        raise OSError("No space left on device")

    def fill(step, _):
        monkeypatch.setattr(saver, "write_part", full if step < HALF and comm.rank == 1 else write)

    write = saver.write_part
    capfd.readouterr()
    directory, others = run(comm, tmp_path, *settings, before_step=fill)
    assert [line["loss"] for line in losses] == [line["loss"] for line in others]
    found = list_steps(directory / "checkpoints")
    assert found[0] == step_of(directory, STEPS)
    assert contents(found[0]).keys() == contents(list_steps(plain / "checkpoints")[0]).keys()
    if comm.rank == 0:
        assert "rank 1: No space left on device" in capfd.readouterr().err


@pytest.mark.mpi(min_size=2)
def test_one_rank_that_is_told_to_stop_before_the_first_step_stops_all_with_a_checkpoint(comm, tmp_path):
    needs(comm, 2)
    part = comm.Split(comm.rank >= 2, comm.rank)
    if comm.rank < 2:
        world = World(part)
        job = load(tmp_path, *BASE, *layout(2, 1, 'checkpoint.every="end"'))
        folder = Path(world.share(str(tmp_path))) / "run"
        folder.mkdir(exist_ok=True)
        world.barrier()
        early = StopWish(lambda _: None)
        if world.rank == 1:
            early._note(signal.SIGTERM, None)
        outcome = train(job, world=world, run_directory=folder, origin=Origin(), early=early)
        assert outcome.exit_code == 75
        assert outcome.steps < STEPS
        assert outcome.checkpoint == step_of(folder, outcome.steps)
        assert read_manifest(outcome.checkpoint).step == outcome.steps
    part.Free()
    rest(comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("fault", ["missing", "shape"])
def test_all_ranks_refuse_a_checkpoint_of_another_model(comm, tmp_path, fault):
    """Only the last stage can see it, before anything is built."""
    needs(comm, 2)
    settings = layout(2, 1, "job.steps=1")
    part = comm.Split(comm.rank >= 2, comm.rank)
    if comm.rank < 2:
        world = World(part)
        job = load(tmp_path, *BASE, *settings)
        folder = Path(world.share(str(tmp_path))) / "run"
        folder.mkdir(exist_ok=True)
        world.barrier()
        assert train(job, world=world, run_directory=folder, origin=Origin()).exit_code == 0
        path = step_of(folder, 1)
        assert choose_together(job, [path], world=world, warn=print).step == 1
        world.barrier()
        if world.rank == 0:
            manifest = read_manifest(path)
            parameters = dict(manifest.parameters)
            entry = parameters.pop("head.project.weight")
            if fault == "shape":
                parameters["head.project.weight"] = replace(entry, shape=(3, 5))
            (path / "manifest.json").write_text(replace(manifest, parameters=parameters).to_json())
        world.barrier()
        with pytest.raises(CheckpointError, match=r"is of another model: .*head\.project\.weight"):
            choose_together(job, [path], world=world, warn=print)
    part.Free()
    rest(comm)


class _Sliced(torch.nn.Module):
    """A matrix of which each rank has a slice of every third of its rows, one sliced by columns, and a whole vector."""

    def __init__(self, part, parts):
        super().__init__()
        rows, columns, vector = torch.arange(72.0).view(12, 6), torch.arange(20.0).view(2, 10), torch.arange(5.0)
        blocks = [block.tensor_split(parts)[part] for block in rows.split(4)]
        self.rows = torch.nn.Parameter(torch.cat(blocks))
        self.columns = torch.nn.Parameter(columns.tensor_split(parts, dim=1)[part].contiguous())
        self.vector = torch.nn.Parameter(vector.clone())
        self.register_buffer("seen", torch.tensor(3))
        if parts > 1:
            self.rows.sliced = (0, part, parts, 3)
            self.columns.sliced = (1, part, parts)


@pytest.mark.mpi(min_size=2)
def test_slices_of_a_parameter_are_saved_as_one_and_cut_anew(comm, tmp_path):
    """Two ranks each have a slice; what they save is read whole by one rank, and by slices again."""
    needs(comm, 2)
    from mpi4py import MPI

    world = World(comm)
    folder = Path(world.share(str(tmp_path)))
    layers = [Layer("only", lambda: None, 1.0, block=True)]
    chain = SimpleNamespace(layers=layers, pieces=[[range(1)]])

    def holdings(part, parts):
        module = _Sliced(part, parts)
        parameters = list(module.parameters())
        buckets = FusionBuckets(
            [parameters],
            comm=MPI.COMM_SELF,
            bucket_bytes=10**6,
            make_optimizer=lambda parameter, _: torch.optim.AdamW([parameter], lr=0.1),
            rate=lambda _: 0.1,
        )
        place = Place(pipeline=1, data=1, tensor=parts, stage=0, replica=0, slice=part)
        return module, buckets, Holdings(chain, [module], buckets, place)

    if comm.rank < 2:
        module, buckets, mine = holdings(comm.rank, 2)
        buckets.add(0, [parameter.detach() + 1 for parameter in module.parameters()], True)
        for bucket in range(len(buckets)):
            buckets.update(bucket, 0)
        write_part(make_partial(folder, 1), mine.snapshot(), number=comm.rank, count=2)
    comm.Barrier()
    job = load(tmp_path)
    manifest = merge_parts(folder, 1, manifest_of(job, SimpleNamespace(layers=("only",), ties={}), 1, 0, {}, ""), 2)
    reader = Reader(folder / "step_00000001.partial", manifest)
    assert manifest.parameters["only.rows"].shape == (12, 6)
    assert len(manifest.parameters["only.vector"].pieces) == 1
    plain, buckets, _ = holdings(0, 1)  # the same update on the whole: AdamW works element by element
    buckets.add(0, [parameter.detach() + 1 for parameter in plain.parameters()], True)
    for bucket in range(len(buckets)):
        buckets.update(bucket, 0)
    whole, restored, one = holdings(0, 1)
    one.restore(reader)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), whole.parameters(), strict=True))
    for made, expected in zip(restored.members, buckets.members, strict=True):
        state, wanted = made.optimizer.state[made.shard_parameter], expected.optimizer.state[expected.shard_parameter]
        assert state.keys() == wanted.keys()
        assert all(torch.equal(state[kind], wanted[kind]) for kind in wanted)
    if comm.rank < 2:
        again, _, cut = holdings(comm.rank, 2)
        cut.restore(reader)
        assert all(torch.equal(a, b) for a, b in zip(module.parameters(), again.parameters(), strict=True))
    comm.Barrier()
