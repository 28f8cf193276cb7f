"""Predicted times of micro-batches that differ: whole, split and cut alike, and in the places that admission gives."""

import pytest
from picture_records import JOB, write_lines

from hpcpipe.job import load_job
from hpcpipe.plan import Kind, Task, admission_order
from hpcpipe.simulate.costs import Machine
from hpcpipe.train import Layout
from hpcpipe.train.model import model_of
from hpcpipe.train.sizes import analytic_costs_of

MACHINE = Machine(tflops=1e-3)


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lines(tmp_path)
    (tmp_path / "job.toml").write_text(JOB + "[parallel]\npipeline = 2\n[batch]\nmicrobatches = 6\n")
    return lambda *overrides: load_job(tmp_path / "job.toml", overrides)


def _whole(job, step):
    """Return ns of every place: all its tasks on all stages."""
    times, chunks = analytic_costs_of(job, MACHINE).times, range(job.chunks)
    kinds = (Kind.F, Kind.B, Kind.W) if job.splits else (Kind.F, Kind.B)
    return [
        sum(times.duration(step, s, Task(kind, place, c)) for s in range(2) for c in chunks for kind in kinds)
        for place in range(6)
    ]


def test_a_microbatch_takes_the_flops_of_its_images_and_text_however_it_is_cut(load):
    """Two FLOPs a multiply-add, twice as many in the backward: six a multiply-add of the forward."""
    job = load('schedule.hint="1f1b"')
    for step in range(3):
        costs = [sum(layers) for layers in model_of(job).costs(step, 0)]
        expected = [6 * cost / (MACHINE.tflops * 1e12) * 1e9 for cost in costs]
        assert max(costs) > 2 * min(costs)
        for hint in ("1f1b", "zb-h1", "zbv"):
            found = _whole(load(f'schedule.hint="{hint}"'), step)
            assert found == pytest.approx(expected, rel=5e-3), hint  # they are rounded to thousands of multiply-adds


def test_admission_moves_times_to_other_places(load):
    plain, pyramid = load('schedule.hint="zb-h1"'), load('schedule.hint="zb-h1"', 'schedule.admission="pyramid"')
    given = _whole(plain, 1)
    moved = _whole(pyramid, 1)
    assert moved == [given[index] for index in admission_order("pyramid", given)]
    assert moved != given


def test_stages_of_unlike_layers_have_even_work_on_average(load):
    job = load('schedule.hint="1f1b"', "batch.microbatches=8")  # a step is an epoch
    layout = Layout.of(job)
    costs = model_of(job).costs(0, 0)
    work = [sum(cost[i] for cost in costs for piece in stage for i in piece) for stage in layout.pieces]
    declared = [sum(layout.layers[i].cost for piece in stage for i in piece) for stage in layout.pieces]
    assert work[0] / sum(work) == pytest.approx(declared[0] / sum(declared), rel=1e-9)
    assert max(work) < 0.6 * sum(work)
