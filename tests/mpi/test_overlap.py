"""What is hidden in real runs: reduce-scatters end after later backwards began, all-gathers after the next step's.

Nothing is timed. A collective is held back until the task has begun that it must not keep from beginning: if it does,
the run never ends.
"""

from pathlib import Path

import pytest
from training import LOGGED, load, train_job

from hpcpipe.events import open_run
from hpcpipe.plan import Kind

STEPS = 4


def _job(folder, comm, split):
    return load(
        folder,
        f"parallel.data={comm.size}",
        f"batch.microbatches={12 // comm.size}",
        "batch.microbatch_size=1",
        "comm.bucket_mb=0.03",  # a bucket has parameters of one chunk or of two
        f"comm.split_allreduce={split}",
        f"job.steps={STEPS}",
        LOGGED,
    )


def _holding(chunks):
    """Return what holds back the last chunk's collectives until the tasks have begun that hide them."""
    begun = []

    def before_step(step, rank):
        if step > 0:
            begun.append(("step", step))
            return
        start, test, starts = rank.buckets.start, rank.buckets.test, rank.stage.start
        held = []
        of_last_chunk = {b for b, of in enumerate(rank.buckets.chunks) if of == {chunks - 1}}
        assert of_last_chunk, "no bucket has parameters of the last chunk alone"

        def began(task):
            begun.append(task)
            start(task)

        def started(number, task, received):
            begun.append(task)
            return starts(number, task, received)

        def hidden(task):
            if task.kind not in (Kind.RS, Kind.AG) or task.microbatch not in of_last_chunk:
                return True
            since = begun[len(begun) - begun[::-1].index(task) :]
            if task.kind is Kind.RS:
                return any(each[0] is Kind.B and each.chunk < chunks - 1 for each in since)
            last = ("step", STEPS - 1) in begun[: len(begun) - len(since)]
            return last or any(each[0] is Kind.F and each.chunk == 0 for each in since)

        def tested():
            held.extend(test())
            done = [task for task in held if hidden(task)]
            held[:] = [task for task in held if not hidden(task)]
            return done

        rank.buckets.start, rank.buckets.test, rank.stage.start = began, tested, started

    return before_step


def _overlaps(folder, rank, kind, beside):
    """Return by step how many collectives of a kind run while a task of others begins, on one rank."""
    (run,) = [each for each in Path(folder).iterdir() if each.name.startswith("run-")]
    rows = open_run(run).ranks[rank].events
    tasks = rows.take([each in beside for each in rows.kind.tolist()])
    found = dict.fromkeys(range(STEPS), 0)
    for row in range(len(rows)):
        if rows.kind[row] == kind:
            inside = (tasks.t_start > rows.t_start[row]) & (tasks.t_start < rows.t_end[row])
            found[int(rows.step[row])] += bool(inside.any())
    return found


@pytest.mark.mpi(min_size=2)
def test_backwards_begin_during_a_reduce_scatter_and_the_next_step_s_forwards_during_an_all_gather(comm, tmp_path):
    job = _job(tmp_path, comm, "true")
    assert job.chunks == 4
    train_job(comm, tmp_path, job, before_step=_holding(job.chunks))
    if comm.rank == 0:
        for rank in range(comm.size):
            reduced = _overlaps(tmp_path, rank, Kind.RS, (Kind.B,))
            gathered = _overlaps(tmp_path, rank, Kind.AG, (Kind.F,))
            assert all(reduced.values())
            assert all(count for step, count in gathered.items() if step < STEPS - 1)


@pytest.mark.mpi(min_size=2)
def test_without_the_split_nothing_runs_beside_a_reduce_scatter_or_an_all_gather(comm, tmp_path):
    job = _job(tmp_path, comm, "false")
    train_job(comm, tmp_path, job)
    if comm.rank == 0:
        tasks = (Kind.F, Kind.B, Kind.W, Kind.UPDATE)
        for rank in range(comm.size):
            for kind in (Kind.RS, Kind.AG):
                assert set(_overlaps(tmp_path, rank, kind, tasks).values()) == {0}
