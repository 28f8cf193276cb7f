"""A run that changed its micro-batches on the way is simulated again with those of the steps that are used."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from job_text import write_job

from hpcpipe.analyze.prediction import predict
from hpcpipe.analyze.recorded import record
from hpcpipe.analyze.what_if import Question, what_if
from hpcpipe.analyze.windows import AnalysisError
from hpcpipe.events import RunLog
from hpcpipe.events.rows import MemoryRows
from hpcpipe.job import Job, load_job
from hpcpipe.simulate.costs import emulated_costs
from hpcpipe.tune import Grouping, with_grouping

STAGES, MICROBATCHES, FORWARD_MS, BACKWARD_MS = 4, 8, 5, 10
NEW = Grouping(k=2, microbatch_size=2)
BEFORE = (MICROBATCHES + STAGES - 1) * (FORWARD_MS + BACKWARD_MS) * 1_000_000
AFTER = (MICROBATCHES // 2 + STAGES - 1) * 2 * (FORWARD_MS + BACKWARD_MS) * 1_000_000
JOB = f"""\
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = {FORWARD_MS}
backward_ms = {BACKWARD_MS}
[parallel]
pipeline = {STAGES}
[batch]
microbatches = {MICROBATCHES}
[schedule]
hint = "kfkb"
dispatch = "fixed"
[tune]
grouping = "on"
microbatch_size = "tuned"
memory_limit = "1 GiB"
"""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return load_job(write_job(tmp_path, JOB, corpus=None))


def simulated(job: Job, steps: range) -> RunLog:
    log = predict(job, emulated_costs(job), steps).log
    assert log is not None
    return log


def regrouped(job: Job, *, first: int = 3, steps: int = 6) -> RunLog:
    """Return a run of the job that is grouped anew from step `first` on; its file says how it began."""
    before, after = simulated(job, range(first)), simulated(with_grouping(job, NEW), range(first, steps))
    ranks = []
    for one, two in zip(before.ranks, after.ranks, strict=True):
        shift = max(int(rank.steps.t_end[-1]) for rank in before.ranks)
        rows = MemoryRows(joined(one.events, moved(two.events, ("t_ready", "t_start", "t_end"), shift)))
        stepped = joined(replace(one.steps, k=one.steps.k + 1), moved(two.steps, ("t_begin", "t_end"), shift))
        stepped = replace(stepped, k=np.where(stepped.step < first, 1, NEW.k))
        ranks.append(replace(one, rows=rows, steps=stepped))
    return replace(before, ranks=tuple(ranks))


def moved(table, names: tuple[str, ...], shift: int):
    return replace(table, **{name: getattr(table, name) + shift for name in names})


def joined(one, two):
    return type(one)(*(np.concatenate([getattr(one, each.name), getattr(two, each.name)]) for each in fields(one)))


def test_a_question_is_answered_with_the_micro_batches_of_the_last_steps(job: Job) -> None:
    found = what_if(regrouped(job), [Question("kfkb,k=1,fixed", ("schedule.k=1",))])
    assert found.own_error == 0
    assert found.own.name == "fixed kfkb k=2"
    assert found.own.step_ns == found.recorded_step_ns == AFTER
    assert found.answers[0].prediction.step_ns == AFTER  # groups change nothing where messages take no time
    assert (
        "the run changed its grouping: these steps have k = 2 and 4 micro-batches of 2, "
        "its job file k = 1 and 8 of 1" in found.assumptions
    )
    assert "times of tasks and messages as steps 3 to 5 of the run recorded them" in found.assumptions


def test_steps_of_the_first_grouping_can_be_chosen(job: Job) -> None:
    found = what_if(regrouped(job), [Question("kfkb,k=2,fixed", ("schedule.k=2",))], (None, 2))
    assert found.own_error == 0
    assert found.own.step_ns == BEFORE
    assert not any("changed its grouping" in each for each in found.assumptions)


def test_of_steps_that_end_with_a_lone_one_the_ones_before_it_are_taken(job: Job) -> None:
    assert record(regrouped(job), (None, 3)).steps == (0, 1, 2)


def test_where_no_two_steps_are_alike_it_says_so(job: Job) -> None:
    with pytest.raises(AnalysisError, match="no two of steps 2 to 3 in a row had the same micro-batches"):
        record(regrouped(job), (2, 3))


def test_a_job_with_micro_batches_of_another_size_takes_times_in_proportion_and_says_so(job: Job) -> None:
    """Half of the time of micro-batches of 2 is that of the emulated ones of 1."""
    costs = record(regrouped(job)).costs_for(job, (0.0,) * STAGES)
    assert predict(job, costs, range(3, 6)).step_ns == BEFORE
    (said,) = [each for each in costs.assumptions if "in proportion" in each]
    assert said == (
        "times of tasks in proportion: the recorded micro-batches are of 2, the job's of 1; "
        "--set batch.microbatches=4 --set batch.microbatch_size=2 asks for those of the run"
    )
