"""A log written by hand gives back the order of dispatch, and what does not fit a job is refused with what to do."""

from dataclasses import replace

import pytest
from job_text import SYNTHETIC
from synthetic_log import header

from hpcpipe.events import EventWriter
from hpcpipe.events.reader import open_run
from hpcpipe.events.recording import ReplayError, check_recorded
from hpcpipe.events.recording import record as record_of
from hpcpipe.job import load_job
from hpcpipe.plan import FLAG_RECOMPUTED, Kind, Task
from hpcpipe.plan.slots import Held, held_in

JOB = f"""\
{SYNTHETIC}\
forward_ms = 1
backward_ms = 2
weight_ms = 1
[parallel]
pipeline = 2
[batch]
microbatches = 3
[schedule]
hint = "bfw"
accumulate = "arrival"
[job]
steps = 2
"""
F, B, W = Kind.F, Kind.B, Kind.W
ORDERS = [
    [(F, 0), (F, 2), (F, 1), (B, 2), (W, 2), (B, 0), (B, 1), (W, 1), (W, 0)],
    [(F, 2), (B, 2), (F, 0), (B, 0), (W, 2), (F, 1), (B, 1), (W, 0), (W, 1)],
]


def _job(folder, *overrides):
    path = folder / "job.toml"
    path.write_text(JOB)
    return load_job(path, overrides)


def _write(folder, *, steps=2, ranks=2, cut=0):
    """Write the orders of both stages, a step's rows in an order of their own, `cut` rows short at the end."""
    job = _job(folder)
    (folder / "events").mkdir()
    for rank in range(ranks):
        head = replace(header(rank=rank, world_size=2, toml=job.to_toml()), job_sha256=job.sha256)
        rows = []
        for step in range(steps):
            for place, (kind, microbatch) in enumerate(ORDERS[rank]):
                start = 1000 * (100 * step + place)
                rows.append((kind, step, microbatch, 0, start, start, start + 900))
        with EventWriter(folder / "events" / f"rank_{rank:05d}.h5", head) as writer:
            for row in sorted(rows[: len(rows) - cut], key=lambda row: (row[1], row[0], row[2])):
                writer.event(*row)
            writer.event(F, 0, 1, 0, 5500, 5500, 5600, flags=FLAG_RECOMPUTED)
            writer.event(Kind.RECV, 0, 1, 0, 1, 1, 2, peer=1 - rank)
    return folder


def test_the_order_of_dispatch_comes_back_whatever_the_order_of_the_rows(tmp_path):
    log = open_run(_write(tmp_path))
    for rank in range(2):
        recording = record_of(_job(tmp_path), log.ranks[rank])
        assert (recording.steps, recording.buckets) == (2, 0)
        for step in range(2):
            assert recording.order(step) == tuple(Task(kind, m) for kind, m in ORDERS[rank])
    check_recorded(_job(tmp_path), tmp_path)


def test_a_step_that_is_not_whole_is_not_replayed_and_the_way_out_is_named(tmp_path):
    _write(tmp_path, cut=1)
    check_recorded(_job(tmp_path, "job.steps=1"), tmp_path)
    with pytest.raises(ReplayError, match=r"holds 1 whole steps, but this job runs 2.*--set job.steps=1"):
        check_recorded(_job(tmp_path), tmp_path)


def test_a_log_without_a_whole_step_is_refused(tmp_path):
    _write(tmp_path, steps=1, cut=1)
    with pytest.raises(ReplayError, match="holds no whole step"):
        check_recorded(_job(tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("parallel.pipeline=3", r"\[parallel\] pipeline = 2, but this job has 3"),
        ("batch.microbatches=4", r"\[batch\] microbatches = 3, but this job has 4"),
        ('schedule.hint="bf"', "a backward that is split = True, but this job has False"),
        ("parallel.chunks=2", "chunks = 1, but this job has 2"),
        ('schedule.accumulate="ordered"', 'ran W2 before W1, which accumulate = "ordered" never lets run'),
        ("comm.slots=2", r'keeps 3 messages at an edge.*set slots = "auto"'),
    ],
)
def test_a_job_of_other_tasks_or_bounds_is_refused(tmp_path, override, told):
    _write(tmp_path)
    path = tmp_path / "job.toml"
    job = _job(tmp_path)
    if "slots" in override:  # a check of the job itself refuses so few for what its own schedule may keep
        job = job.model_copy(update={"comm": job.comm.model_copy(update={"slots": 2})})
    else:
        job = load_job(path, (override,))
    with pytest.raises(ReplayError, match=told):
        check_recorded(job, tmp_path)


def test_a_missing_rank_and_a_missing_run_are_refused(tmp_path):
    _write(tmp_path, ranks=1)
    with pytest.raises(ReplayError, match="no log of rank 1"):
        check_recorded(_job(tmp_path), tmp_path)
    with pytest.raises(ReplayError, match="there is no such run"):
        check_recorded(_job(tmp_path), tmp_path / "nowhere")


def test_what_an_order_holds_is_counted_by_chunk():
    """Stage 0: F0 F2 F1 are in flight when B2 comes (3); with their weight gradients 3 too, and 2 when B0 comes."""
    order = [Task(kind, m) for kind, m in ORDERS[0]]
    assert held_in(order, chunks=1, split=True) == (Held(3, 3),)
    assert held_in([Task(kind, m) for kind, m in ORDERS[1]], chunks=1, split=True) == (Held(1, 2),)
    both = [Task(F, 0, 0), Task(F, 0, 1), Task(F, 1, 1), Task(B, 0, 1), Task(B, 0, 0), Task(B, 1, 1)]
    assert held_in(both, chunks=2, split=False) == (Held(1, 1), Held(2, 2))
