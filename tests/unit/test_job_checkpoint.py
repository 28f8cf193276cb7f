"""The table [checkpoint]: when, how many, and what is refused."""

import pytest
from job_text import SYNTHETIC, VALID, fault_of, write_job

from hpcpipe.job import load_job
from hpcpipe.job.checkpoint import Checkpoint

EMULATED = f"""\
{SYNTHETIC}\
forward_ms = 1.0
backward_ms = 2.0
weight_ms = 1.0
"""


@pytest.mark.parametrize(
    ("every", "steps", "seconds"),
    [
        (100, 100, None),
        ('"10min"', None, 600.0),
        ('"1.5h"', None, 5400.0),
        ('"30 s"', None, 30.0),
        ('"end"', None, None),
    ],
)
def test_every_is_steps_a_time_or_the_end(tmp_path, every, steps, seconds):
    settings = load_job(write_job(tmp_path), [f"checkpoint.every={every}"]).checkpoint
    assert settings.on
    assert (settings.steps, settings.seconds) == (steps, seconds)
    assert settings.on_signal


def test_nothing_is_saved_unless_the_job_says_so(tmp_path):
    assert not load_job(write_job(tmp_path)).checkpoint.on
    assert not Checkpoint().on


@pytest.mark.parametrize("value", ["0", "-5", '"10 parsecs"', '"0min"', "true", "1.5", '"100"', '""', "[5]"])
def test_a_wrong_every_is_told_with_the_ways_to_write_it(tmp_path, value):
    fault = fault_of(write_job(tmp_path, VALID + f"[checkpoint]\nevery = {value}\n"))
    assert fault.key == "checkpoint.every"
    assert "every = " in fault.hint


@pytest.mark.parametrize("setting", ["keep = 5", "on_signal = false"])
def test_a_setting_without_every_has_no_effect_and_is_refused(tmp_path, setting):
    fault = fault_of(write_job(tmp_path, VALID + f"[checkpoint]\n{setting}\n"))
    assert "has no effect" in fault.message
    assert "every = 100" in fault.hint


def test_an_emulated_job_has_nothing_to_save(tmp_path):
    fault = fault_of(write_job(tmp_path, EMULATED + "[checkpoint]\nevery = 5\n"))
    assert "no parameters" in fault.message
    assert fault.key == "checkpoint.every"
