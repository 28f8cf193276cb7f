"""Replicas train like one process, to the bit the same on every run, whether the all-reduce is split or not."""

import pytest
import torch
from layers import disturb
from training import load, needs, reference, train_on

from hpcpipe.plan import Kind
from hpcpipe.train import trained


def _settings(pipeline, replicas, *more):
    sizes = (f"parallel.pipeline={pipeline}", f"parallel.data={replicas}", f"batch.microbatches={12 // replicas}")
    return ["comm.bucket_mb=0.02", 'schedule.hint="bf"', "batch.microbatch_size=1", *sizes, *more]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("replicas", "optimizer"), [(2, "adam"), (2, "sgd"), (3, "adamw"), (4, "sgd")])
def test_parameters_after_20_steps_are_those_of_one_process(comm, tmp_path, replicas, optimizer):
    needs(comm, replicas)
    # Adam divides by the root of a gradient's square: eps keeps what is only rounding from deciding signs.
    rule = ("optimizer.momentum=0.9", "optimizer.lr=0.05") if optimizer == "sgd" else ("optimizer.eps=1e-4",)
    settings = _settings(1, replicas, f'optimizer.name="{optimizer}"', *rule)
    expected = reference(load(tmp_path, *settings)) if comm.rank == 0 else None
    result = train_on(comm, tmp_path, *settings)
    if comm.rank == 0:
        losses, net = expected
        assert result[0] == pytest.approx(losses, rel=1e-6)
        for mine, theirs in zip(result[1], net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("pipeline", "replicas", "clip"), [(1, 2, '"off"'), (1, 2, "0.7"), (1, 3, '"off"'), (2, 2, "0.7")]
)
def test_the_bits_are_the_same_on_every_run_and_whether_the_all_reduce_is_split_or_not(
    comm, tmp_path, pipeline, replicas, clip
):
    needs(comm, pipeline * replicas)
    bits = None
    for seed, split in enumerate(["true", "true", "false"]):
        seen = []

        def watch(step, rank, seed=seed, seen=seen):
            disturb(seed)(step, rank)
            if step == 0:
                start, update = rank.buckets.start, rank.buckets.update
                rank.buckets.start = lambda task: (seen.append(task.kind), start(task))[1]
                rank.buckets.update = lambda *which: (seen.append(Kind.UPDATE), update(*which))[1]

        more = (
            f"comm.split_allreduce={split}",
            f"optimizer.clip={clip}",
            "job.steps=4",
            'optimizer.nonfinite="late-stop"',
        )
        result = train_on(comm, tmp_path, *_settings(pipeline, replicas, *more), before_step=watch)
        if result is not None:
            bits = bits or result
            assert all(torch.equal(a, b) for a, b in zip(result[1], bits[1], strict=True))
            assert result[0] == bits[0] or comm.rank
            if split == "false":
                count = len(result[2].buckets)
                norm = [Kind.NORM] * (clip != '"off"')
                assert seen == 4 * [*[Kind.RS] * count, *norm, *[Kind.UPDATE] * count, *[Kind.AG] * count]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("progress", ["poll", "auto"])
def test_gathers_between_the_sums_of_a_backward_and_a_thread_that_moves_them_change_no_bit(
    comm, tmp_path, monkeypatch, replicas, progress
):
    """One micro-batch on one stage of four chunks, as plain data parallelism has it."""
    needs(comm, replicas)
    made = trained.FusionBuckets
    asked = []

    def make(*args, **settings):
        asked.append(settings["gathers_early"])
        return made(*args, **{**settings, "progress": progress})

    monkeypatch.setattr(trained, "FusionBuckets", make)
    more = ["batch.microbatches=1", "parallel.chunks=4", 'optimizer.nonfinite="late-stop"', "job.steps=6"]
    settings = _settings(1, replicas, *more, "comm.bucket_mb=0.005")
    whole = train_on(comm, tmp_path, *settings, "comm.split_allreduce=false")
    split = train_on(comm, tmp_path, *settings, before_step=disturb(replicas))
    if split is not None:
        assert asked == [True, True]
        assert all(torch.equal(a, b) for a, b in zip(whole[1], split[1], strict=True))
