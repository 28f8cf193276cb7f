"""Tied embeddings: one value wherever its copies lie, torch's losses, the same bits under every schedule."""

import pytest
import torch
from layers import by_layer, disturb
from test_replay import _orders as orders
from test_replay import _run as run
from training import LOGGED, load, needs, on_four, reference, train_on

from hpcpipe.plan import Kind

BASE = ("model.tied=true", "job.steps=3", "model.layers=8", "comm.bucket_mb=0.02")
FIRST, LAST = "embedding.token.weight", "head.project.weight"


def _settings(pipeline, hint, dispatch, *more):
    layout = [f"parallel.pipeline={pipeline}", f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"']
    return [*BASE, *layout, *more]


@pytest.mark.mpi(min_size=2)
def test_tied_embeddings_train_as_one_matrix_under_every_schedule(comm, tmp_path):
    """Copies drift apart where their gradients are not summed (Megatron-LM 299); a V needs no message for them."""
    on_four(comm)
    stages = min(comm.size, 4)
    runs = [(1, "bf", "ready"), (stages, "1f1b", "fixed"), (stages, "bf", "ready"), (stages, "zb-h1", "ready")]
    runs += [(stages, "zbv", "ready"), (2, "interleaved", "ready")]
    losses = reference(load(tmp_path, *BASE))[0] if comm.rank == 0 else None
    bits = None
    for seed, layout in enumerate(runs):
        settings = _settings(*layout)
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed))
        found = by_layer(comm, result, load(tmp_path, *settings))
        if comm.rank == 0:
            assert result[0] == pytest.approx(losses, rel=1e-6), layout
            assert torch.equal(found[FIRST], found[LAST]), layout
            if layout[0] > 1:  # one rank computes with all cores, and so in sums of other parts
                bits = bits or found
                assert all(torch.equal(found[name], bits[name]) for name in bits), layout


@pytest.mark.mpi(min_size=4)
def test_replicas_of_tied_stages_train_like_one_process_with_the_whole_batch(comm, tmp_path):
    more = ("parallel.data=2", "batch.microbatches=3")
    losses, net = reference(load(tmp_path, *BASE, *more)) if comm.rank == 0 else (None, None)
    bits = None
    for seed, (hint, dispatch) in enumerate([("1f1b", "fixed"), ("bf", "ready"), ("zbv", "ready")]):
        settings = _settings(2, hint, dispatch, *more)
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed))
        found = by_layer(comm, result, load(tmp_path, *settings))
        copies = comm.allgather(list(_copies(result)))
        if comm.rank == 0:
            assert result[0] == pytest.approx(losses, rel=1e-6)
            torch.testing.assert_close(found[FIRST], net[0].token.weight.detach())
            bits = bits or found
            assert all(torch.equal(found[name], bits[name]) for name in bits), hint
            assert all(torch.equal(p, found[FIRST]) for each in copies for p in each)


def _copies(result):
    for module in [] if result is None else result[2].modules:
        for name, parameter in module.named_parameters():
            if name in ("token.weight", "project.weight"):
                yield parameter.detach().clone()


@pytest.mark.mpi(min_size=2)
def test_the_norm_of_a_tied_gradient_counts_it_once_and_its_optimizer_state_is_kept_once(comm, tmp_path):
    """torchtitan 596: what several stages hold counts once in the global norm."""
    needs(comm, 2)
    sizes, norms = [], []
    for pipeline, hint in [(1, "bf"), (2, "bf"), (2, "zbv")]:
        settings = _settings(pipeline, hint, "ready", "job.steps=2")
        seen = []
        result = train_on(
            comm, tmp_path, *settings, before_step=lambda _s, rank, seen=seen: seen.append(rank.buckets.square_norm)
        )
        norms.append(sum(comm.allgather(seen[-1] if seen else 0.0)))
        mine = 0 if result is None else sum(_state_size(bucket) for bucket in result[2].buckets._buckets)
        sizes.append(sum(comm.allgather(mine)))
    assert norms[1:] == pytest.approx(norms[:1] * 2, rel=1e-5)
    assert sizes[0] == sizes[1] == sizes[2]


def _state_size(bucket):
    (state,) = bucket.optimizer.state.values()
    return state["exp_avg"].numel()


@pytest.mark.mpi(min_size=2)
def test_only_a_tie_between_stages_is_exchanged(comm, tmp_path):
    needs(comm, 2)
    kinds = {}
    for hint in ("bf", "zbv"):
        rows = []

        def watch(step, rank, rows=rows):
            if step == 0:
                start = rank.buckets.start
                rank.buckets.start = lambda task: (rows.append(task.kind), start(task))[1]

        train_on(comm, tmp_path, *_settings(2, hint, "ready", "job.steps=2"), before_step=watch)
        kinds[hint] = [kind for kind in rows if kind is not Kind.NORM]
    assert kinds == {"bf": [Kind.RS, Kind.AG] * 2 if comm.rank < 2 else [], "zbv": []}


@pytest.mark.mpi(min_size=2)
def test_a_run_with_ties_and_repeated_forwards_can_be_replayed(comm, tmp_path):
    needs(comm, 2)
    settings = _settings(2, "bf", "ready", 'model.recompute="all"', 'schedule.accumulate="arrival"')
    job = load(tmp_path, *settings, LOGGED)
    source, parameters = run(comm, tmp_path, job, before_step=disturb(3))
    again, same = run(comm, tmp_path, job, replay=source)
    assert all(torch.equal(a, b) for a, b in zip(parameters, same, strict=True))
    if comm.rank == 0:
        assert orders(again)[0] == orders(source)[0]
