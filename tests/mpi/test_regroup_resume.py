"""A run that had chosen its grouping goes on from a checkpoint with it, unless the job's file asks for another one."""

import json
from pathlib import Path

import pytest
from training import LOGGED, load, on_two, rest

from hpcpipe.checkpoint import Resume, read_manifest
from hpcpipe.events import open_run
from hpcpipe.runtime import World
from hpcpipe.train import Origin, train
from hpcpipe.train.grouping import first_grouping
from hpcpipe.tune import Decision, Grouping, Space

STEPS, HALF = 8, 4
BASE = (
    f"job.steps={STEPS}",
    f"checkpoint.every={HALF}",
    "batch.microbatches=12",
    "batch.microbatch_size=1",
    'schedule.hint="kfkb"',
    "model.dropout=0.1",
    'tune.grouping="on"',
    'tune.memory_limit="1 GiB"',
    LOGGED,
)


class Deciding:
    """Has a rank decide for some groupings, each known by the sums of a step, and for nothing else."""

    def __init__(self, decided):
        self.decided, self.had, self.begun = decided, [], None

    def __call__(self, step, rank):
        if self.begun is None:
            self.begun = rank.begun
            rank.source._chooser.take = self.take
        schedule = rank.source.of(step)
        self.had.append((schedule.k, tuple(limits.in_flight for limits in schedule.limits)))

    def take(self, step, _sums):
        grouping = self.decided.get(step)
        return None if grouping is None else Decision(step + 3, grouping, "try", "a test wants it")


def run(comm, folder, *overrides, decided=None, resume=None):
    """Train on all ranks; return the run's folder, its losses by step, and what this rank saw."""
    directory = Path(World(comm).share(str(folder / f"run-{len(list(folder.iterdir()))}")))
    job = load(folder, *BASE, f"parallel.pipeline={comm.size}", *overrides)
    world = World(comm)
    directory.mkdir(exist_ok=True)
    world.barrier()
    start = None if resume is None else Resume(resume, read_manifest(resume))
    deciding = Deciding(decided or {})
    options = {"run_directory": directory, "origin": Origin(), "before_step": deciding, "resume": start}
    assert train(job, world=world, **options).exit_code == 0
    rest(comm)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return directory, [line["loss"] for line in lines], deciding


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dispatch", ["fixed", "ready"])
def test_a_resumed_run_goes_on_with_the_grouping_that_had_been_chosen(comm, tmp_path, dispatch):
    on_two(comm)
    caps = () if dispatch == "fixed" else tuple(min(12, 3 * (comm.size - stage)) for stage in range(comm.size))
    chosen, setting = Grouping(3, 1, caps), f'schedule.dispatch="{dispatch}"'
    directory, losses, before = run(comm, tmp_path, setting, decided={0: chosen})
    assert before.begun == ()
    assert [k for k, _ in before.had] == [1, 1, 1, 3, 3, 3, 3, 3]
    half = directory / "checkpoints" / f"step_{HALF:08d}"
    resumed, again, after = run(comm, tmp_path, setting, resume=half)
    assert [each.grouping for each in after.begun] == [chosen]
    assert after.had == before.had[HALF:]
    assert again == losses, "k changes no bit, so it does not matter that all is measured anew"
    if comm.rank == 0:
        rows = open_run(resumed).ranks[0].decisions
        assert (rows.step[0], bytes(rows.what[0])) == (HALF, b"grouping")
        assert bytes(rows.why[0]).startswith(b"resume: ")


@pytest.mark.mpi(min_size=2)
def test_a_job_that_asks_for_another_grouping_than_before_gets_it_and_the_log_says_so(comm, tmp_path):
    on_two(comm)
    directory, losses, _ = run(comm, tmp_path, 'schedule.dispatch="fixed"', decided={0: Grouping(3, 1)})
    half = directory / "checkpoints" / f"step_{HALF:08d}"
    _, again, after = run(comm, tmp_path, 'schedule.dispatch="fixed"', "schedule.k=2", resume=half)
    (begun,) = after.begun
    assert begun.grouping == Grouping(2, 1)
    assert "k = 3" in begun.why
    assert "asks for another grouping" in begun.why
    assert [k for k, _ in after.had] == [2] * (STEPS - HALF)
    assert again == losses
    less = load(tmp_path, *BASE, f"parallel.pipeline={comm.size}", 'schedule.dispatch="fixed"')
    none = Space(candidates=())
    refused = first_grouping(less, read_manifest(half), space=lambda _job: none)
    assert refused.grouping == Grouping(1, 1)
    assert "not among those that the job can choose from now" in refused.why
    off = ('schedule.dispatch="fixed"', 'tune.grouping="off"')
    job = load(tmp_path, *BASE, f"parallel.pipeline={comm.size}", *off)
    assert first_grouping(job, read_manifest(half)) is None


@pytest.mark.mpi(min_size=2)
def test_a_resumed_run_keeps_its_micro_batch_size_too(comm, tmp_path):
    on_two(comm)
    tuned = ('schedule.dispatch="fixed"', 'tune.microbatch_size="tuned"')
    directory, losses, _ = run(comm, tmp_path, *tuned, decided={0: Grouping(2, 3)})
    half = directory / "checkpoints" / f"step_{HALF:08d}"
    assert read_manifest(half).samples == HALF * 12
    _, again, after = run(comm, tmp_path, *tuned, resume=half)
    assert [each.grouping for each in after.begun] == [Grouping(2, 3)]
    assert again == losses, "the same micro-batches again"
