"""What a grouping means for a job: sizes, schedule and messages of every step, and what is wrong with the choice."""

from pathlib import Path

import pytest
from job_text import SYNTHETIC, VALID, write_job

from hpcpipe.job import Job, load_job
from hpcpipe.train import Layout
from hpcpipe.train.grouping import Grouped, Groupings, grouped, numbers_of
from hpcpipe.train.regroup import problem_with_grouping, space_for
from hpcpipe.tune import Grouping

KFKB = ('schedule.hint="kfkb"', 'schedule.dispatch="fixed"', "batch.microbatches=6", "batch.microbatch_size=2")
EMULATED = f"""\
{SYNTHETIC}\
forward_ms = 3
backward_ms = 5
fixed_ms = 1
message_bytes = 1000
[parallel]
pipeline = 2
"""


def _job(folder: Path, *overrides: str, text: str = VALID) -> Job:
    return load_job(write_job(folder, text), (*KFKB, *overrides))


def test_other_micro_batches_keep_the_batch_and_scale_what_depends_on_their_size(tmp_path: Path) -> None:
    job = _job(tmp_path, text=EMULATED)
    other = grouped(job, Layout.of(job), Grouping(2, 3))
    assert (other.microbatches, other.job.batch.microbatch_size) == (4, 3)
    assert other.layout.schedule.k == 2
    assert other.layout.boundary_bytes == 1500
    assert (other.job.device.forward_ms, other.job.device.backward_ms) == (1 + 2 * 1.5, 1 + 4 * 1.5)
    slots = {source.feeds.name: source.slots for source in other.layout.sources(0)}
    assert slots == {"B": 4}, "kFkB holds k (S - s) = 4 on stage 0"
    with pytest.raises(ValueError, match="do not divide 12 samples"):
        grouped(job, Layout.of(job), Grouping(1, 5))


def test_a_change_is_told_once_to_all_that_follow_and_holds_from_its_step_on(tmp_path: Path) -> None:
    job = _job(tmp_path, text=EMULATED)
    groupings, told = Groupings(Grouped(job, Layout.of(job))), []
    groupings.follow(lambda step, what: told.append((step, what.microbatches)))
    groupings.change(5, Grouping(2, 3))
    groupings.change(6, Grouping(1, 1))
    assert told == [(5, 4), (6, 12)]
    assert [groupings.at(step).microbatches for step in (4, 5, 6, 7)] == [6, 4, 12, 12]


def test_a_grouping_is_kept_in_a_checkpoint_as_numbers() -> None:
    numbers = numbers_of(Grouping(3, 2, (6, 3)))
    assert numbers == {
        "grouping_k": 3.0,
        "grouping_microbatch_size": 2.0,
        "grouping_cap_0": 6.0,
        "grouping_cap_1": 3.0,
    }


def test_a_limit_that_nothing_fits_or_the_start_does_not_fit_is_said_before_the_run(tmp_path: Path) -> None:
    tuned = 'tune.grouping="on"'
    assert problem_with_grouping(_job(tmp_path)) == ""
    assert problem_with_grouping(_job(tmp_path, tuned, 'tune.memory_limit="1 GiB"')) == ""
    little = problem_with_grouping(_job(tmp_path, tuned, 'tune.memory_limit="1000 B"'))
    assert "fits into 1000 B" in little
    assert "on stage" in little
    assert "raise [tune] memory_limit" in little
    needed = max(space_for(_job(tmp_path, tuned, 'tune.memory_limit="1 GiB"')).find(Grouping(1, 2)).peak_bytes)
    large = problem_with_grouping(_job(tmp_path, tuned, f'tune.memory_limit="{needed} B"', "schedule.k=3"))
    assert "begin with k = 3" in large
    assert "begin with less" in large
