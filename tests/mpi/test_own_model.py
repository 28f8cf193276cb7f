"""Models and data of a user's own between ranks: the losses of a plain loop over whole batches, in any layout."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from training import needs, rest

from hpcpipe.data import Order
from hpcpipe.job import load_job
from hpcpipe.models import build
from hpcpipe.plan import Kind
from hpcpipe.runtime import World
from hpcpipe.train import Origin, train
from hpcpipe.train.own_model import own_model

UNIT = Path(__file__).parents[1] / "unit"
SAMPLES, HELD_OUT, STEPS, BATCH = 40, 10, 5, 12
JOB = f"""
[job]
name = "own"
steps = {STEPS}
seed = 3
[model]
kind = "own_models:lazily"
import_from = "{UNIT}"
[data]
kind = "own_models:data"
import_from = "{UNIT}"
options = {{ samples = {SAMPLES} }}
[batch]
microbatches = 6
microbatch_size = 2
[optimizer]
name = "sgd"
lr = 0.1
weight_decay = 0.0
[events]
on = false
"""
LAYOUTS = {
    "1 stage": (1, ()),
    "2 stages": (2, ("parallel.pipeline=2",)),
    "2 stages of 2 chunks": (2, ("parallel.pipeline=2", "parallel.chunks=2", "batch.microbatches=6")),
    "2 stages, split backward": (2, ("parallel.pipeline=2", 'schedule.hint="zb-h1"')),
    "2 stages, turned": (2, ("parallel.pipeline=2", 'schedule.hint="zbv"')),
    "2 replicas": (2, ("parallel.data=2", "batch.microbatches=3")),
    "other micro-batches": (2, ("parallel.pipeline=2", "batch.microbatches=3", "batch.microbatch_size=4")),
    "2 stages, 2 replicas": (4, ("parallel.pipeline=2", "parallel.data=2", "batch.microbatches=3")),
    "4 stages": (4, ("parallel.pipeline=4",)),
}


def _load(folder, *overrides, text=JOB):
    path = folder / "job.toml"
    path.write_text(text)
    return load_job(path, overrides)


def _train(comm, folder, *overrides, before_step=lambda _step, _rank: None, text=JOB):
    """Train on the first ranks; return the lines of metrics.jsonl on those, None on the others."""
    job = _load(folder, *overrides, text=text)
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    lines = None
    if comm.rank < job.parallel.ranks:
        world = World(part)
        run_directory = Path(world.share(str(folder / f"run-{len(list(folder.iterdir()))}")))
        run_directory.mkdir(exist_ok=True)
        world.barrier()
        outcome = train(job, world=world, run_directory=run_directory, origin=Origin(), before_step=before_step)
        assert outcome.exit_code == 0
        world.barrier()
        lines = [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
        assert outcome.evaluations == tuple(
            (line["step"] + 1, line["eval_loss"]) for line in lines if "eval_loss" in line
        )
    part.Free()
    rest(comm)
    return lines


def _reference(job, data, loss, *, held_out=0):
    """Train the layers on whole batches with torch alone; return the losses and those over what is held out."""
    model = own_model(job)
    layers = build(model.layers, range(len(model.layers)), seed=job.run.seed)
    model.release(keep_loss=False)
    if any(layer.ties for layer in model.layers):
        layers[-1].weight = layers[0].weight
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=job.optimizer.lr)
    order = Order(SAMPLES - held_out, seed=job.data.seed)
    losses, evaluations = [], []

    def batch(samples):
        inputs, targets = zip(*(data[int(sample)] for sample in samples), strict=True)
        return net(torch.stack(inputs)), torch.stack([torch.as_tensor(each) for each in targets])

    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(*batch(order.take(step * BATCH, BATCH)))
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if held_out:
            with torch.no_grad():
                evaluations.append(loss(*batch(np.arange(SAMPLES - held_out, SAMPLES))).item())
    return losses, evaluations


def _padded_loss(output, targets):
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten(), ignore_index=-100)


MODELS = {
    "lazily": ("data", lambda models: models.Numbers(SAMPLES), functional.cross_entropy),
    "whole": ("data", lambda models: models.Numbers(SAMPLES), lambda o, t: functional.cross_entropy(o[:, :5], t)),
    "padded": ("rows", lambda models: models.Padded(SAMPLES), _padded_loss),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Give the losses of torch alone, and those over the held-out samples after every step, by model; on rank 0."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        return None
    folder, found = tmp_path_factory.mktemp("reference"), {}
    for name, (data, make, loss) in MODELS.items():
        kinds = (f'model.kind="own_models:{name}"', f'data.kind="own_models:{data}"')
        job = _load(folder, *kinds)
        own_model(job)  # puts the folder of the models on the import path
        samples = make(import_module("own_models"))
        found[name] = [_reference(job, samples, loss, held_out=held_out) for held_out in (0, HELD_OUT)]
    return found


def _values(lines, key):
    return [line[key] for line in lines if key in line]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("model", "layout"),
    [
        *(("lazily", layout) for layout in LAYOUTS),
        *(("whole", layout) for layout in ("1 stage", "2 stages of 2 chunks", "2 stages, split backward", "4 stages")),
        *(("padded", layout) for layout in ("2 replicas", "other micro-batches", "2 stages, 2 replicas")),
    ],
)
def test_losses_and_evaluations_are_those_of_a_plain_loop_in_every_layout(comm, tmp_path, expected, model, layout):
    ranks, overrides = LAYOUTS[layout]
    needs(comm, ranks)
    kinds = (f'model.kind="own_models:{model}"', f'data.kind="own_models:{MODELS[model][0]}"')
    held = (f"data.eval_fraction={HELD_OUT / SAMPLES}", "data.eval_every=1", "data.eval_microbatch_size=3")
    lines = _train(comm, tmp_path, *kinds, *held, *overrides)
    if comm.rank == 0:
        losses, evaluations = expected[model][1]
        assert _values(lines, "loss") == pytest.approx(losses, rel=1e-6)
        assert _values(lines, "eval_loss") == pytest.approx(evaluations, rel=1e-6)
        assert losses[-1] < losses[0]


@pytest.mark.mpi(min_size=2)
def test_an_evaluation_changes_nothing_of_the_training(comm, tmp_path):
    """Dropout is on in training and off in evaluations, and neither its bits nor the parameters depend on them."""
    needs(comm, 2)
    model = ("model.options={dropout=0.3}", "parallel.pipeline=2", f"data.eval_fraction={HELD_OUT / SAMPLES}")
    often = _train(comm, tmp_path, *model, "data.eval_every=2")
    rarely = _train(comm, tmp_path, *model)
    again = _train(comm, tmp_path, *model, "data.eval_every=2", "parallel.pipeline=1")
    if comm.rank == 0:
        assert _values(often, "loss") == _values(rarely, "loss")
        assert [line["step"] for line in often if "eval_loss" in line] == [1, 3, 4]
        assert [line["step"] for line in rarely if "eval_loss" in line] == [4]
        assert _values(often, "eval_loss")[-1:] == _values(rarely, "eval_loss")
        assert _values(again, "eval_loss") == pytest.approx(_values(often, "eval_loss"), rel=1e-6)


class _LateGathers:
    """A buckets' test that shows an all-gather only after many more looks."""

    def __init__(self, test):
        self._test, self._kept, self._looks = test, [], 0

    def __call__(self):
        done = self._test()
        self._kept += [task for task in done if task.kind is Kind.AG]
        self._looks += 1
        shown, self._kept = (self._kept, []) if self._looks % 40 == 0 else ([], self._kept)
        return [task for task in done if task.kind is not Kind.AG] + shown


@pytest.mark.mpi(min_size=2)
def test_an_evaluation_waits_until_all_parameters_are_those_of_its_step(comm, tmp_path):
    needs(comm, 2)
    under_way = []

    def look(step, rank):
        if step == 0:
            rank.buckets.test = _LateGathers(rank.buckets.test)
            evaluate = rank.evaluator.evaluate

            def noting(**how):
                under_way.append(list(rank.engine.view().collectives))
                return evaluate(**how)

            rank.evaluator.evaluate = noting

    held = (f"data.eval_fraction={HELD_OUT / SAMPLES}", "data.eval_every=1")
    _train(comm, tmp_path, "parallel.data=2", "batch.microbatches=3", *held, before_step=look)
    assert under_way == [[]] * STEPS


@pytest.mark.mpi(min_size=2)
def test_dicts_with_numbers_and_integers_cross_between_the_stages_of_an_own_model(comm, tmp_path):
    needs(comm, 2)
    model = ('model.kind="own_models:dicts"', f"data.eval_fraction={HELD_OUT / SAMPLES}")
    one = _train(comm, tmp_path, *model)
    two = _train(comm, tmp_path, *model, "parallel.pipeline=2")
    if comm.rank == 0:
        for key in ("loss", "eval_loss"):
            assert _values(two, key) == pytest.approx(_values(one, key), rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_slices_of_a_language_model_learn_from_own_data_in_which_not_all_targets_count(comm, tmp_path):
    needs(comm, 2)
    model = 'kind = "gpt"\nlayers = 2\ndim = 16\nheads = 2\ncontext = 8\nvocab_size = 16\n'
    text = JOB.replace(f'kind = "own_models:lazily"\nimport_from = "{UNIT}"\n', model)
    data = ('data.kind="own_models:sentences"', f"data.eval_fraction={HELD_OUT / SAMPLES}")
    one = _train(comm, tmp_path, *data, text=text)
    two = _train(comm, tmp_path, *data, "parallel.tensor=2", text=text)
    if comm.rank == 0:
        for key in ("loss", "eval_loss"):
            assert _values(two, key) == pytest.approx(_values(one, key), rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_a_language_model_is_evaluated_on_the_last_sequences_of_its_text(comm, tmp_path):
    """The built-in model and data; the value is that of torch alone on the same sequences."""
    needs(comm, 2)
    from hpcpipe.models import gpt_layers

    text = b"".join(b"%d, %d and %d; " % (i, i * i, i**3) for i in range(400))
    (tmp_path / "text.txt").write_bytes(text)
    job = """
[job]
steps = 1
[model]
kind = "gpt"
layers = 4
dim = 16
heads = 2
context = 24
[data]
kind = "text"
path = "text.txt"
eval_fraction = 0.05
eval_samples = 7
[optimizer]
lr = 1e-30
weight_decay = 0.0
[batch]
microbatches = 2
microbatch_size = 2
"""
    found = []
    for overrides in ((), ("parallel.pipeline=2",), ("parallel.data=2", "batch.microbatches=1")):
        path = tmp_path / "text.toml"
        path.write_text(job)
        loaded = load_job(path, overrides)
        part = comm.Split(comm.rank >= loaded.parallel.ranks, comm.rank)
        if comm.rank < loaded.parallel.ranks:
            world = World(part)
            run_directory = Path(world.share(str(tmp_path / f"text-{len(found)}")))
            run_directory.mkdir(exist_ok=True)
            world.barrier()
            outcome = train(loaded, world=world, run_directory=run_directory, origin=Origin())
            found.append(outcome.evaluations)
        part.Free()
        rest(comm)
    if comm.rank == 0:
        sizes = {"layers": 4, "dim": 16, "heads": 2, "context": 24, "vocab_size": 256}
        layers = gpt_layers(**sizes, dropout=0.0, seq_len=24)
        net = torch.nn.Sequential(*build(layers, range(6), seed=0))
        windows = (len(text) - 1) // 24
        first = windows - round(windows * 0.05)
        rows = np.stack([np.frombuffer(text, np.uint8)[24 * w : 24 * w + 25] for w in range(first, first + 7)])
        tokens = torch.from_numpy(rows.astype(np.int64))
        with torch.no_grad():
            value = functional.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()
        assert [each for ((_, each),) in found] == pytest.approx([value] * 3, rel=1e-6)


if str(UNIT) not in sys.path:
    sys.path.append(str(UNIT))
