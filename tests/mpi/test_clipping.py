"""Clipping by all ranks' norm or by each stage's; steps that are not finite: agreed on, found, left out or the end."""

import json
from pathlib import Path

import pytest
import torch
from kept_state import state_of
from layers import by_layer, disturb
from training import load, needs, on_four, reference, rest, train_on

from hpcpipe.exit_code import ExitCode
from hpcpipe.plan import Kind
from hpcpipe.runtime import World
from hpcpipe.train import Origin, train

CLIP = ("comm.bucket_mb=0.02", "job.steps=6", "optimizer.clip=0.7")


def _layout(pipeline, hint, *more):
    return [*CLIP, f"parallel.pipeline={pipeline}", f'schedule.hint="{hint}"', 'schedule.dispatch="ready"', *more]


def _norms(folder):
    newest = max(folder.glob("run-*"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line)["grad_norm"] for line in (newest / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("pipeline", "replicas", "hint", "tied"),
    [(1, 1, "bf", False), (2, 1, "zb-h1", True), (1, 2, "bf", False), (2, 2, "bf", True), (4, 1, "bf", False)],
)
def test_the_clipped_run_is_torchs_with_clip_grad_norm(comm, tmp_path, pipeline, replicas, hint, tied):
    needs(comm, pipeline * replicas)
    more = (f"parallel.data={replicas}", f"batch.microbatches={6 // replicas}", f"model.tied={str(tied).lower()}")
    settings = _layout(pipeline, hint, *more)
    losses, net = reference(load(tmp_path, *settings)) if comm.rank == 0 else (None, None)
    result = train_on(comm, tmp_path, *settings)
    if comm.rank == 0:
        expected = [norm for (norm,) in net.norms]
        assert sum(norm > 0.7 for norm in expected) > 3
        assert result[0] == pytest.approx(losses, rel=1e-6)
        assert _norms(tmp_path) == pytest.approx(expected, rel=1e-5)
        assert _norms(tmp_path)[0] == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_each_stage_may_clip_by_its_own_norm_with_other_numbers(comm, tmp_path):
    needs(comm, 2)
    settings = _layout(2, "bf", 'optimizer.clip_scope="stage"', 'optimizer.nonfinite="late-stop"')
    job = load(tmp_path, *settings)
    whole = reference(job)[0] if comm.rank == 0 else None
    by_stage, net = reference(job, clipped=_halves) if comm.rank == 0 else (None, None)
    result = train_on(comm, tmp_path, *settings)
    if comm.rank == 0:
        assert result[0] == pytest.approx(by_stage, rel=1e-6)
        assert by_stage != pytest.approx(whole, rel=1e-6)
        together = [sum(norm**2 for norm in norms) ** 0.5 for norms in net.norms]
        assert _norms(tmp_path) == pytest.approx(together, rel=1e-5)


def _halves(net):
    """The parameters of two stages of four blocks between embedding and head."""
    return [[p for layer in part for p in layer.parameters()] for part in (net[:3], net[3:])]


@pytest.mark.mpi(min_size=2)
def test_clipping_leaves_the_same_bits_under_any_timing_and_meets_once_a_step(comm, tmp_path):
    """It communicates once (horovod 1099), and its sums have one order (torchtitan's PR 4312 had another a stage)."""
    on_four(comm)
    stages, bits = min(comm.size, 4), None
    for seed, (pipeline, hint) in enumerate([(stages, "1f1b"), (stages, "bf"), (stages, "zb-h1"), (1, "bf")]):
        settings = _layout(pipeline, hint)
        seen = []

        def watch(step, rank, seed=seed, seen=seen):
            disturb(seed)(step, rank)
            if step == 0:
                torch.set_num_threads(1)
                start = rank.buckets.start
                rank.buckets.start = lambda task: (seen.append(task.kind), start(task))[1]

        result = train_on(comm, tmp_path, *settings, before_step=watch)
        found = by_layer(comm, result, load(tmp_path, *settings))
        assert seen == ([] if result is None else [Kind.NORM] * 6)
        if comm.rank == 0:
            bits = bits or found
            assert all(torch.equal(found[name], bits[name]) for name in bits), hint


def _train(comm, folder, *overrides, before_step):
    """Train on the first ranks whatever comes of it; return the outcome and the lines of the metrics."""
    job = load(folder, "comm.bucket_mb=0.02", "job.steps=6", *overrides)
    part = comm.Split(comm.rank >= job.parallel.ranks, comm.rank)
    result = None
    if comm.rank < job.parallel.ranks:
        world = World(part)
        directory = Path(world.share(str(folder / "run")))
        directory.mkdir(exist_ok=True)
        world.barrier()
        outcome = train(job, world=world, run_directory=directory, origin=Origin(), before_step=before_step)
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        result = outcome, lines
    part.Free()
    rest(comm)
    return result


def _bits(rank):
    rank.engine.gather()
    parameters = [p for each in rank.parameters for p in each]
    kept = [value for p in parameters for value in state_of(rank.buckets.members, p)[2].values()]
    return [value.detach().numpy().tobytes() for value in (*parameters, *kept)]


class _Poison:
    """Makes one module's output, or its gradient, NaN for one micro-batch of some steps; keeps every step's bits."""

    def __init__(self, comm, *, rank, steps, microbatch, backward=False):
        self._mine = comm.rank == rank
        self._steps, self._microbatch, self._backward = steps, microbatch, backward
        self._step = self._now = -1
        self.bits = []
        self.ranks = []

    def __call__(self, step, rank):
        self._step = step
        self.bits.append(_bits(rank))
        if step == 0:
            self.ranks.append(rank)
            if self._mine:
                self._attach(rank)

    def _attach(self, rank):
        start = rank.stage.start

        def noting(step, task, received):
            self._now = task.microbatch if task.kind is Kind.F else -1
            return start(step, task, received)

        rank.stage.start = noting
        rank.modules[-2].mlp_in.register_forward_hook(self._spoil)

    def _spoil(self, _module, _inputs, output):
        if self._step not in self._steps or self._now != self._microbatch:
            return output
        if not self._backward:
            return output * torch.nan
        output.register_hook(lambda gradient: gradient * torch.nan)
        return output


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("backward", [False, True])
def test_a_nan_on_one_rank_ends_all_at_the_same_step_before_any_state_changes_and_is_named(comm, tmp_path, backward):
    """OpenBMB's BMTrain 108, torchtitan 3863: a NaN that one rank sees is a matter of all."""
    replicas = 2 if comm.size >= 4 else 1
    poison = _Poison(comm, rank=2 * replicas - 1, steps=(3,), microbatch=2, backward=backward)
    more = ("parallel.pipeline=2", f"parallel.data={replicas}", "batch.microbatches=3", 'schedule.hint="zb-h1"')
    result = _train(comm, tmp_path, *more, before_step=poison)
    if result is not None:
        outcome, lines = result
        assert outcome.exit_code == ExitCode.DIVERGED
        assert (outcome.steps, len(lines)) == (4, 4)
        assert _bits(poison.ranks[0]) == poison.bits[3] != poison.bits[2]
        said = outcome.diverged
        microbatch = 2 + 3 * (replicas - 1)
        assert said.startswith("step 3: the gradient is not finite; it arose in micro-batch")
        assert f"micro-batch {microbatch}, in the " in said
        assert ("gradient of block.3.mlp_in" if backward else "forward of block.3.mlp_in,") in said
        assert f"on rank {2 * replicas - 1} (stage 1" in said
    reasons = {each[0].diverged for each in comm.allgather(result) if each is not None}
    assert len(reasons) == 1


@pytest.mark.mpi(min_size=2)
def test_a_step_that_is_left_out_changes_no_state_and_the_run_goes_on(comm, tmp_path):
    needs(comm, 2)
    poison = _Poison(comm, rank=0, steps=(1, 3), microbatch=0)
    more = ("parallel.pipeline=2", 'schedule.hint="bf"', 'optimizer.nonfinite="skip"', "optimizer.max_skips=1")
    result = _train(comm, tmp_path, *more, before_step=poison)
    if result is not None:
        outcome, lines = result
        assert (outcome.exit_code, outcome.steps, outcome.diverged) == (ExitCode.DONE, 6, "")
        assert [line["skipped"] for line in lines] == [step in (1, 3) for step in range(6)]
        same = [poison.bits[step] == poison.bits[step + 1] for step in range(5)]
        assert same == [False, True, False, True, False]
        counts = {value.item() for p in poison.ranks[0].parameters[0] for value in _count(poison.ranks[0], p)}
        assert counts == {4.0}


def _count(rank, parameter):
    return [state_of(rank.buckets.members, parameter)[2]["step"]]


@pytest.mark.mpi(min_size=2)
def test_too_many_steps_left_out_in_a_row_end_the_run(comm, tmp_path):
    needs(comm, 2)
    poison = _Poison(comm, rank=1, steps=range(1, 6), microbatch=1)
    more = ("parallel.pipeline=2", 'schedule.hint="bf"', 'optimizer.nonfinite="skip"', "optimizer.max_skips=2")
    result = _train(comm, tmp_path, *more, before_step=poison)
    if result is not None:
        outcome, lines = result
        assert outcome.exit_code == ExitCode.DIVERGED
        assert [line["skipped"] for line in lines] == [False, True, True, False]
        assert "micro-batch 1, in the forward of block.3.mlp_in" in outcome.diverged
        assert "(and so were the 2 steps before it)" in outcome.diverged


@pytest.mark.mpi(min_size=2)
def test_late_stop_asks_nobody_before_an_update_and_still_ends_all_ranks(comm, tmp_path):
    needs(comm, 2)
    poison = _Poison(comm, rank=1, steps=(2,), microbatch=0)
    kinds = []

    def watch(step, rank):
        poison(step, rank)
        if step == 0:
            start = rank.buckets.start
            rank.buckets.start = lambda task: (kinds.append(task.kind), start(task))[1]

    more = ("parallel.pipeline=2", 'schedule.hint="bf"', 'optimizer.nonfinite="late-stop"')
    result = _train(comm, tmp_path, *more, before_step=watch)
    if result is not None:
        assert result[0].exit_code == ExitCode.DIVERGED
        assert result[0].steps <= 4
        assert Kind.NORM not in kinds
