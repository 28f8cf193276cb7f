"""Models that begin with a Hugging Face folder, over real stages: transformers' losses and gradients, own tensors."""

from functools import partial
from pathlib import Path

import pytest
import torch
from layers import by_layer, disturb
from safetensors import safe_open
from test_replay import _run as run
from training import needs, on_four, rest, train_job

from hpcpipe.job import load_job
from hpcpipe.job.huggingface import stored_tensors
from hpcpipe.models import hf_load
from hpcpipe.models.hf_export import export_hf
from hpcpipe.runtime import World
from hpcpipe.train.batches import batches_of

JOB = """
[model]
init = "model"
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
seq_len = 32
[job]
steps = 1
[batch]
microbatches = 4
microbatch_size = 2
[optimizer]
name = "sgd"
lr = 1.0
weight_decay = 0.0
"""
LAYOUTS = [(1, 1, "bf"), (2, 1, "1f1b"), (2, 1, "bf"), (2, 2, "zbv"), (4, 1, "zb-h1")]
"""Stages, chunks of each, and the hint."""


@pytest.fixture(params=["gpt2", "llama tied"])
def started(request, comm, tmp_path):
    """Return a job's path beside a folder, one for all ranks, and on rank 0 transformers' model."""
    world = World(comm)
    folder, theirs = Path(world.share(str(tmp_path))), None
    if comm.rank == 0:
        from huggingface import MODELS_OF_TESTS, saved

        theirs = MODELS_OF_TESTS[request.param]()
        saved(theirs, folder / "model", max_shard_size="20KB")
        (folder / "job.toml").write_text(JOB)
    rest(comm)
    return folder / "job.toml", theirs


def loss_of_transformers(job, model):
    """Return the loss of the job's first step, its gradients left in the model."""
    batch, batches = job.batch, batches_of(job, replica=0)
    batches.load(0)
    model.zero_grad()
    total = 0.0
    for microbatch in range(batch.microbatches):
        logits = model(batches.inputs(microbatch)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batches.targets(microbatch).flatten())
        (loss / batch.microbatches).backward()
        total += loss.item() / batch.microbatches
    return total


@pytest.mark.mpi(min_size=2)
def test_stages_that_load_a_folder_have_transformers_loss_and_gradients(comm, started, tmp_path):
    """With plain SGD at rate 1 a parameter moves by its gradient."""
    on_four(comm)
    path, theirs = started
    layers = load_job(path).model.layers
    layouts = [each for each in LAYOUTS if each[0] <= comm.size and each[0] * each[1] <= layers]
    needs(comm, max(stages for stages, _, _ in layouts))
    for number, (stages, _, hint) in enumerate(layouts):
        overrides = [f"parallel.pipeline={stages}", f'schedule.hint="{hint}"']
        job = load_job(path, overrides)
        before = {}

        def remember(step, rank, before=before, number=number):
            disturb(number)(step, rank)
            before.update({id(p): p.detach().clone() for module in rank.modules for p in module.parameters()})

        result = train_job(comm, tmp_path, job, before_step=remember)
        moved = by_layer(comm, result, job)
        if result is not None:
            for module in result[2].modules:
                for p in module.parameters():
                    p.data.copy_(before[id(p)])
        begun = by_layer(comm, result, job)
        if comm.rank == 0:
            assert result[0][0] == pytest.approx(loss_of_transformers(job, theirs), rel=1e-5)
            gradients = {name: p.grad for name, p in theirs.named_parameters()}
            tensors = {name: p.detach() for name, p in theirs.named_parameters()}
            for stored in stored_tensors(job.model):
                turn = torch.t if stored.transposed else torch.clone
                assert torch.equal(turn(begun[stored.key]), tensors[stored.tensor]), (hint, stored)
                gradient = turn(begun[stored.key] - moved[stored.key])
                torch.testing.assert_close(gradient, gradients[stored.tensor], rtol=1e-4, atol=1e-5)


@pytest.mark.mpi(min_size=2)
def test_every_rank_reads_its_own_tensors_and_all_together_read_the_model(comm, started, tmp_path, monkeypatch):
    path, theirs = started
    stages = min(comm.size, 3)
    job = load_job(path, [f"parallel.pipeline={stages}", "parallel.chunks=1", "optimizer.lr=0.01"])
    read = []
    monkeypatch.setattr(hf_load, "safe_open", partial(_Counting, read))
    result = train_job(comm, tmp_path, job)
    found = comm.gather((read, [] if result is None else [p.shape for p in result[1]]))
    parameters = by_layer(comm, result, job)
    if comm.rank == 0:
        assert all(len(names) == len(shapes) for names, shapes in found)
        assert all(names for names, _ in found[:stages])
        stored = stored_tensors(job.model)
        assert sorted(name for names, _ in found for name in names) == sorted(each.tensor for each in stored)
        export_hf(tmp_path / "trained", job.model, parameters, like=job.model.init_folder)
        from transformers import AutoModelForCausalLM

        again = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
        assert loss_of_transformers(job, again) < loss_of_transformers(job, theirs)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("started", ["llama tied"], indirect=True)
def test_a_run_that_began_with_a_folder_is_replayed_wherever_its_path_starts(comm, started, tmp_path):
    """The log holds the folder's absolute path, the job a relative one."""
    needs(comm, 2)
    job = load_job(started[0], ["parallel.pipeline=2"])
    source, parameters = run(comm, tmp_path, job)
    _, again = run(comm, tmp_path, job, replay=source)
    assert all(torch.equal(one, other) for one, other in zip(parameters, again, strict=True))


class _Counting:
    def __init__(self, read, path, framework):
        self._read, self._file = read, safe_open(path, framework)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        del self._file

    def get_tensor(self, name):
        self._read.append(name)
        return self._file.get_tensor(name)
