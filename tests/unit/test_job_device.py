"""The table [device]: which keys each kind has, and what does not go together."""

import pytest
from job_text import SYNTHETIC, VALID, fault_of, write_job

from hpcpipe.job import Job, load_job
from hpcpipe.job.device import Device, Emulated, Processor

EMULATED = f"""\
{SYNTHETIC}\
forward_ms = 1
backward_ms = 2
weight_ms = 1
"""


def _path(folder, table, text=VALID):
    return write_job(folder, f"{text}\n{table}\n")


@pytest.mark.parametrize(
    ("table", "section"),
    [
        ("", Device()),
        ('[device]\nkind = "cpu"\ncompile = true', Processor(compile=True)),
        (
            '[device]\nkind = "cuda"\nshare = true\nlaunch_ahead = 3\nnvtx = true',
            Device(kind="cuda", share=True, launch_ahead=3, nvtx=True),
        ),
    ],
)
def test_each_kind_has_its_keys_and_a_resolved_job_keeps_them(tmp_path, table, section):
    job = load_job(_path(tmp_path, table))
    assert job.device == section and type(job.device) is type(section)
    again = Job.from_resolved(job.to_toml()).device
    assert again == section and type(again) is type(section)


def test_an_emulated_device_takes_one_task_at_a_time_unless_asked(tmp_path):
    job = load_job(_path(tmp_path, "", text=EMULATED))
    assert isinstance(job.device, Emulated) and job.device.launch_ahead == 1
    assert type(Job.from_resolved(job.to_toml()).device) is Emulated


@pytest.mark.parametrize("key", ["share = true", "launch_ahead = 2", "nvtx = true"])
def test_a_key_that_only_a_gpu_obeys_is_refused_for_the_cpu(tmp_path, key):
    fault = fault_of(_path(tmp_path, f'[device]\nkind = "cpu"\n{key}'))
    assert key.partition(" ")[0] in fault.message


def test_slices_that_meet_in_their_tasks_take_one_at_a_time(tmp_path):
    more = "launch_ahead = 2\n[parallel]\npipeline = 2\ntensor = 2"
    fault = fault_of(_path(tmp_path, "", text=EMULATED + more))
    assert fault.message.startswith("launch_ahead = 2, but the tasks of tensor = 2 slices end together")


def test_collectives_of_slices_are_not_compiled(tmp_path):
    fault = fault_of(_path(tmp_path, '[device]\nkind = "cpu"\ncompile = true'), "parallel.tensor=2")
    assert "torch.compile cannot hold" in fault.message


def test_a_split_backward_of_compiled_layers_is_told_to_be_folded(tmp_path):
    path = _path(tmp_path, '[device]\nkind = "cpu"\ncompile = true')
    (warning,) = load_job(path, ('schedule.hint="bfw"',)).warnings
    assert "W folded into B" in warning.message
    assert not load_job(path, ('schedule.hint="1f1b"',)).warnings
