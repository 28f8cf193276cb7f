"""A replayed run dispatches what was recorded in the order that was recorded, on every rank, with the same bits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from layers import disturb
from test_emulated import JOB as EMULATED
from test_training import _EvenGradientsLate
from training import LOGGED, load, needs, on_four, on_two, rest

from hpcpipe.events import open_run
from hpcpipe.events.recording import ReplayError
from hpcpipe.job import load_job
from hpcpipe.plan import FLAG_REPLAYED, Kind, Task
from hpcpipe.runtime import World
from hpcpipe.train import Origin, read_replay, train
from hpcpipe.tune import Grouping

KINDS = (Kind.F, Kind.B, Kind.W, Kind.RS, Kind.NORM, Kind.UPDATE, Kind.AG)


def _emulated(folder, *overrides):
    path = folder / "job.toml"
    path.write_text(EMULATED)
    return load_job(path, overrides)


def _run(comm, folder, job, *, replay=None, before_step=lambda _step, _rank: None):
    """Run a job on the first ranks; return (run directory, parameters) there, the path alone on the others."""
    rest(comm)
    directory = Path(World(comm).share(str(folder / f"run-{len(list(folder.iterdir()))}")))
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    parameters = []
    if comm.rank < job.parallel.ranks:
        world = World(part)
        directory.mkdir(exist_ok=True)
        order = None if replay is None else read_replay(job, replay, world)
        ranks = []

        def look(step, rank):
            ranks.append(rank)
            before_step(step, rank)

        outcome = train(job, world=world, run_directory=directory, origin=Origin(), replay=order, before_step=look)
        assert (outcome.exit_code, outcome.steps) == (0, job.run.steps)
        parameters = [p.detach().clone() for module in ranks[-1].modules for p in module.parameters()]
    part.Free()
    rest(comm)
    return directory, parameters


def _orders(directory):
    """Return by rank and step the tasks in the order of their dispatch, and whether all are marked as replayed."""
    found, marks = {}, set()
    for rank in open_run(directory).ranks:
        events = rank.events.take(np.isin(rank.events.kind, KINDS))
        marks |= set((events.flags & FLAG_REPLAYED).tolist())
        rows = zip(events.step, events.t_start, events.kind, events.microbatch, events.chunk, strict=True)
        for step, _, *task in sorted(tuple(map(int, row)) for row in rows):
            found.setdefault((rank.rank, step), []).append(Task(*task))
    return found, marks


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("hint", ["bfw", "interleaved", "critical"])
def test_an_emulated_run_under_random_times_and_delays_is_replayed_under_other_ones(comm, tmp_path, hint):
    on_two(comm)
    settings = [f"parallel.pipeline={comm.size}", f'schedule.hint="{hint}"', 'schedule.accumulate="arrival"']
    settings += ['schedule.in_flight="2x"', "batch.microbatches=8"]
    settings += ['variability.compute={ model = "lognormal", sigma = 0.8 }']
    settings += ['variability.network={ model = "lognormal", base_ms = 2.0, sigma = 1.5 }']
    recorded, _ = _run(comm, tmp_path, _emulated(tmp_path, *settings))
    other = _emulated(tmp_path, *settings, "variability.seed=77")
    replayed, _ = _run(comm, tmp_path, other, replay=recorded)
    free, _ = _run(comm, tmp_path, other)
    if comm.rank == 0:
        expected, _ = _orders(recorded)
        found, marks = _orders(replayed)
        assert found == expected
        assert marks == {FLAG_REPLAYED}
        own, unmarked = _orders(free)
        assert own != expected, "these times do not change the order, so the replay shows nothing"
        assert unmarked == {0}


@pytest.mark.mpi(min_size=2)
def test_a_run_that_changed_its_groups_and_micro_batches_is_replayed_with_them(comm, tmp_path):
    on_two(comm)
    settings = [
        f"parallel.pipeline={min(comm.size, 4)}",
        'schedule.hint="kfkb"',
        "batch.microbatches=12",
        "job.steps=6",
    ]
    settings += ["batch.microbatch_size=1", "model.dropout=0.1", 'tune.grouping="on"', 'tune.memory_limit="1 GiB"']
    job = load(tmp_path, *settings, 'tune.microbatch_size="tuned"', LOGGED)
    had = (Grouping(1, 1), Grouping(2, 1), Grouping(2, 3), Grouping(1, 12), Grouping(3, 1), Grouping(3, 1))

    def change(step, rank):
        disturb(comm.rank)(step, rank)
        rank.source.take = lambda _step, _sums: ()
        if step + 1 < len(had):
            rank.groupings.change(step + 1, had[step + 1])

    recorded, parameters = _run(comm, tmp_path, job, before_step=change)
    replayed, again = _run(comm, tmp_path, job, replay=recorded)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parameters, again, strict=True))
    if comm.rank == 0:
        assert _orders(replayed)[0] == _orders(recorded)[0]
        lines = [json.loads(line) for line in (replayed / "metrics.jsonl").read_text().splitlines()]
        assert [(line["k"], line["microbatch_size"]) for line in lines] == [(g.k, g.microbatch_size) for g in had]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("replicas", "hint"), [(1, "zbv"), (2, "bfw")])
def test_a_real_run_is_replayed_with_the_same_order_and_bits(comm, tmp_path, replicas, hint):
    on_four(comm)
    pipeline = min(comm.size // replicas, 4)
    settings = [f"parallel.pipeline={pipeline}", f"parallel.data={replicas}", "comm.bucket_mb=0.02", "job.steps=4"]
    settings += [f'schedule.hint="{hint}"', 'schedule.accumulate="arrival"', 'schedule.in_flight="2x"']
    job = load(tmp_path, *settings, "model.layers=8", LOGGED)
    recorded, parameters = _run(comm, tmp_path, job, before_step=disturb(1, share=0.4, longest_s=0.01))
    replayed, again = _run(comm, tmp_path, job, replay=recorded, before_step=disturb(2, share=0.4, longest_s=0.01))
    assert all(torch.equal(a, b) for a, b in zip(parameters, again, strict=True))
    if comm.rank == 0:
        expected, _ = _orders(recorded)
        found, marks = _orders(replayed)
        assert found == expected
        assert marks == {FLAG_REPLAYED}
        assert {task.kind for task in expected[0, 0]} >= {Kind.F, Kind.B, Kind.UPDATE}


@pytest.mark.mpi(min_size=2)
def test_sums_in_order_of_arrival_have_other_bits_in_another_order_and_the_same_in_a_replay(comm, tmp_path):
    """Stage 0 is given some gradients late, so it adds them in another order than a run that nothing disturbs."""
    needs(comm, 2)

    def swap(step, rank):
        if step == 0 and comm.rank == 0:
            rank.mailbox.poll = _EvenGradientsLate(rank.mailbox.poll)

    settings = ['schedule.hint="bf"', 'schedule.accumulate="arrival"', "parallel.pipeline=2", "job.steps=4"]
    job = load(tmp_path, *settings, LOGGED)
    fixed = load(tmp_path, *settings, LOGGED, 'schedule.hint="1f1b"', 'schedule.dispatch="fixed"')
    _, plain = _run(comm, tmp_path, fixed)
    recorded, swapped = _run(comm, tmp_path, job, before_step=swap)
    replayed, again = _run(comm, tmp_path, job, replay=recorded)
    assert all(torch.equal(a, b) for a, b in zip(swapped, again, strict=True))
    if comm.rank == 0:
        assert _orders(replayed)[0] == _orders(recorded)[0]
        assert not all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.mpi(min_size=2)
def test_a_log_that_does_not_fit_is_refused_alike_on_all_ranks(comm, tmp_path):
    settings = [f"parallel.pipeline={comm.size}", 'schedule.hint="bfw"', "job.steps=2"]
    recorded, _ = _run(comm, tmp_path, _emulated(tmp_path, *settings))
    world = World(comm)
    wrong = {
        "job.steps=3": "holds 2 whole steps, but this job runs 3",
        "batch.microbatches=5": r"microbatches = 6, but this job has 5",
        'schedule.hint="bf"': "a backward that is split = True, but this job has False",
    }
    for setting, told in wrong.items():
        with pytest.raises(ReplayError, match=told):
            read_replay(_emulated(tmp_path, *settings, setting), recorded, world)
    with pytest.raises(ReplayError, match="no such run"):
        read_replay(_emulated(tmp_path, *settings), recorded / "nowhere", world)
    rest(comm)
