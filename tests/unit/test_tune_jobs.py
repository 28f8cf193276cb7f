"""Jobs with another grouping: the same samples, the same comments, and the memory that layers and settings make."""

import tomllib
from pathlib import Path

import pytest
from job_text import VALID, write_job
from test_job_tune import TUNED

from hpcpipe.job import Job, load_job
from hpcpipe.job.overrides import parse_overrides
from hpcpipe.job.planned import schedule_of
from hpcpipe.train import Layout
from hpcpipe.train.memory import bytes_of_a_parameter, stage_memory
from hpcpipe.tune import Grouping, batch_of, grouping_of, space_of, with_grouping
from hpcpipe.tune.job_copy import with_job, write_beside


def tuned(folder: Path, *overrides: str) -> Job:
    return load_job(write_job(folder, TUNED, corpus=None), overrides)


def test_the_grouping_of_a_job_is_in_its_own_space_and_gives_back_its_schedule(tmp_path: Path) -> None:
    for dispatch in ("ready", "fixed"):
        job = tuned(tmp_path, f"schedule.dispatch={dispatch}", "schedule.k=2", 'tune.memory_limit="1 MiB"')
        start = grouping_of(job)
        assert start == Grouping(2, 2, (8, 6, 4, 2) if dispatch == "ready" else ())
        assert space_of(job, stage_memory(job)).find(start).peak_bytes == (8192, 6144, 4096, 2048)
        assert start.schedule(schedule_of(job), batch=batch_of(job)) == schedule_of(job)


@pytest.mark.parametrize("grouping", [Grouping(4, 1), Grouping(1, 8), Grouping(2, 2, (8, 7, 5, 2))])
def test_a_job_with_another_grouping_says_so_has_the_same_batch_and_loads(tmp_path: Path, grouping: Grouping) -> None:
    job = with_grouping(tuned(tmp_path, "tune.grouping=off"), grouping)
    assert batch_of(job) == 16
    path = tmp_path / "other.toml"
    path.write_text(job.to_toml(), encoding="utf-8")
    again = load_job(path)
    assert again == job
    assert grouping_of(again).k == grouping.k
    assert grouping_of(again).microbatch_size == grouping.microbatch_size
    if grouping.caps:
        assert grouping_of(again).caps == grouping.caps


def test_emulated_times_follow_the_micro_batch_but_for_their_fixed_part(tmp_path: Path) -> None:
    job = tuned(tmp_path, "device.fixed_ms=1", "device.backward_ms=[10, 11, 12, 13]", "device.weight_ms=4")
    device = with_grouping(job, Grouping(1, 4)).device  # twice the samples
    assert device.forward_ms == 1 + 2 * 4
    assert device.backward_ms == (19, 21, 23, 25)
    assert (device.weight_ms, device.message_bytes) == (8, 2048)
    assert with_grouping(job, Grouping(4, 2)).device == job.device


def test_a_micro_batch_that_does_not_divide_the_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="micro-batches of 3 do not divide 16 samples"):
        with_grouping(tuned(tmp_path), Grouping(1, 3))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], 4 + 4 + 8),  # value, gradient, two moments
        (["optimizer.name=sgd", "optimizer.betas=[0.9, 0.95]"], 8),
        (["optimizer.name=sgd", "optimizer.momentum=0.9"], 12),
        (["precision.compute=bf16"], 2 + 4 + 4 + 8),  # and an fp32 master
        (["parallel.data=4"], 8 + 2),  # moments are in shards
        (["parallel.data=4", "precision.compute=bf16", "precision.reduce=bf16"], 2 + 4 + 2 + 3),
    ],
)
def test_a_parameter_takes_what_its_value_gradient_and_shard_take(
    tmp_path: Path, settings: list[str], expected: float
) -> None:
    job = load_job(write_job(tmp_path), settings)
    assert bytes_of_a_parameter(job) == expected


def test_the_fixed_memory_is_that_of_the_parameters_and_activations_grow_with_samples(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    jobs = [
        load_job(write_job(tmp_path), ["schedule.hint=kfkb", f"batch.microbatch_size={size}", "batch.microbatches=4"])
        for size in (1, 4)
    ]
    one, four = map(stage_memory, jobs)
    assert one == four  # of a sample
    layout = Layout.of(jobs[0])
    assert [memory.fixed for memory in one] == [16 * layout.num_parameters(stage) for stage in (0, 1)]
    boundary = 4 * 64 * 32  # fp32, width 64, 32 tokens
    assert layout.boundary_bytes == boundary
    # Stage 0 receives gradients, stage 1 activations of a stage with twice its micro-batches in flight.
    assert [memory.messages for memory in one] == [boundary, 2 * boundary]
    block = 17 * boundary  # what a transformer block stashes (arXiv 2205.05198, without attention scores)
    assert all(memory.activation >= 2 * block for memory in one)


COMMENTED = """\
# ours
[model]
kind = "synthetic"  # nothing is computed
[data]
kind = "synthetic"

[batch]
microbatches = 8     # per replica
[schedule] # the order
k = 1
in_flight = "2x" # room
hint = 'kfkb'
[device]
kind = "emulated"
forward_ms = [4, 4.5] # two kinds
backward_ms = 8
fixed_ms = 1
[parallel]
pipeline = 2
"""


def test_a_copy_keeps_comments_order_and_spelling_and_says_the_new_grouping(tmp_path: Path) -> None:
    path = write_job(tmp_path, COMMENTED, corpus=None)
    job = with_grouping(load_job(path), Grouping(2, 2))
    copy = with_job(COMMENTED, job)
    changed = {
        "microbatches = 8     # per replica": "microbatches = 4     # per replica\nmicrobatch_size = 2",
        "k = 1": "k = 2",
        'in_flight = "2x" # room': 'in_flight = "equal-memory" # room',
        "forward_ms = [4, 4.5] # two kinds": "forward_ms = [7.0, 8.0] # two kinds",
        "backward_ms = 8": "backward_ms = 15.0",
        "fixed_ms = 1": "fixed_ms = 1\nmessage_bytes = 8192",
    }
    expected = COMMENTED
    for old, new in changed.items():
        assert old in expected
        expected = expected.replace(old, new)
    assert copy == expected
    path.write_text(copy, encoding="utf-8")
    assert load_job(path).to_toml() == job.to_toml()


@pytest.mark.parametrize(
    "text",
    [
        'model.kind = "synthetic"\ndata.kind = "synthetic"\n'
        'device = { kind = "emulated", forward_ms = 4, backward_ms = 8 }\nparallel.pipeline = 2\n'
        'schedule.hint = "kfkb"\nbatch.microbatches = 8\n',
        '[model]\nkind="synthetic"\n[data]\nkind="synthetic"\n[parallel]\npipeline=2\n'
        '[device]\nkind="emulated"\nforward_ms=4\nbackward_ms=8',  # no end of line, no [batch], no [schedule]
    ],
)
def test_a_copy_of_any_spelling_is_the_job_that_was_meant(tmp_path: Path, text: str) -> None:
    path = write_job(tmp_path, text, corpus=None)
    overrides = ['job.name="it"', "job.steps=3"]
    loaded = load_job(path, [*overrides, "schedule.hint=kfkb"])
    job = with_grouping(loaded, Grouping(2, 2, (4, 3)))
    copy = with_job(text, job, overrides=parse_overrides(overrides)[0])
    path.write_text(copy, encoding="utf-8")
    assert tomllib.loads(load_job(path).to_toml()) == tomllib.loads(job.to_toml())


def test_a_copy_is_never_written_over_another_file_unless_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "job.tuned.toml"
    write_beside(path, "one", replace=False)
    with pytest.raises(FileExistsError):
        write_beside(path, "two", replace=False)
    assert path.read_text() == "one"
    write_beside(path, "three", replace=True)
    assert path.read_text() == "three"
    assert [each.name for each in tmp_path.iterdir()] == ["job.tuned.toml"]


def test_a_model_without_layers_for_two_chunks_is_measured_as_one_chunk(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = load_job(write_job(tmp_path, VALID), ["schedule.hint=kfkb"])
    assert len(stage_memory(job)) == 2
