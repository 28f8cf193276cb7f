"""What `hpcpipe simulate` suggests follows from the times, and is predicted as if the job asked for it."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from job_text import write_job

from hpcpipe.api.predicting import predict
from hpcpipe.cli.simulate import simulate

JOB = """\
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[device]
kind = "emulated"
forward_ms = 5
backward_ms = 10
weight_ms = 5
[parallel]
pipeline = 4
[batch]
microbatches = 16
[schedule]
hint = "1f1b"
dispatch = "fixed"
"""
STEADY = 'variability.network={model="constant",base_ms=0.1}'
SLOW = 'variability.network={model="constant",base_ms=6}'
NOISY = 'variability.compute={model="lognormal",sigma=0.5}'


@pytest.mark.parametrize(
    ("setting", "chunks", "dispatch"),
    [
        (STEADY, 2, "fixed"),
        (SLOW, 1, "fixed"),  # a message takes longer than a forward
        (NOISY, 2, "ready"),  # tasks deviate by more than 15 %
    ],
)
def test_the_suggestion_fits_the_times_and_is_predicted_as_if_the_job_asked_for_it(
    tmp_path: Path, setting: str, chunks: int, dispatch: str
) -> None:
    job = write_job(tmp_path, JOB, corpus=None)
    found = predict(job, [setting])
    assert found.suggestion is not None
    asked = ("schedule.hint=critical", f"schedule.dispatch={dispatch}", f"parallel.chunks={chunks}")
    assert found.suggestion.settings == asked
    (same,) = predict(job, [setting, *asked]).predictions
    assert found.suggestion.step_ns == same.step_ns
    assert found.suggestion.peak_stash == max(same.peak_stash)
    assert found.suggestion.speedup == found.predictions[0].step_ns / same.step_ns > 1.02


@pytest.mark.parametrize(
    "settings",
    [
        ["parallel.pipeline=1"],
        ["schedule.hint=critical", "parallel.chunks=2"],  # it is so already
        ["schedule.hint=kfkb", "tune.grouping=on", "tune.memory_limit=1 GiB"],
    ],
)
def test_nothing_is_suggested_where_nothing_is_to_be_gained_or_something_else_chooses(
    tmp_path: Path, settings: list[str]
) -> None:
    assert predict(write_job(tmp_path, JOB, corpus=None), [STEADY, *settings]).suggestion is None


def test_the_command_ends_with_it_its_gain_and_memory_and_how_to_train_so(tmp_path: Path) -> None:
    job = str(write_job(tmp_path, JOB, corpus=None))
    usual = ["--set", "schedule.hint=1f1b", "--ranks", "2"]
    document = json.loads(CliRunner().invoke(simulate, [job, *usual, "--json"]).stdout)["suggestion"]
    last = CliRunner().invoke(simulate, [job, *usual]).stdout.splitlines()[-1]
    gain = f"{document['step_ns'] / 1e6:.2f} ms a step, {document['speedup']:.3f}x of fixed 1f1b"
    hint, *others = document["settings"]
    words = " ".join(f"--set {each}" for each in (hint, "parallel.pipeline=2", *others))
    assert last == f"suggestion ({gain}, stash {document['peak_stash']:g}): hpcpipe run {job} {words}"


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("--set schedule.hint=critical --set parallel.chunks=2", "schedule.hint=critical parallel.chunks=2"),
        (
            f"--set {NOISY} --compare gpipe:fixed,critical:in_flight=4x:stash=4x",
            f"{NOISY} schedule.hint=critical schedule.dispatch=ready schedule.in_flight=4x schedule.stash=4x",
        ),
    ],
    ids=["nothing to suggest", "a schedule of the table is faster"],
)
def test_where_nothing_is_faster_than_the_table_the_command_ends_with_the_fastest_of_it(
    tmp_path: Path, options: str, settings: str
) -> None:
    job = str(write_job(tmp_path, JOB, corpus=None))
    words = [job, *options.split()]
    document = json.loads(CliRunner().invoke(simulate, [*words, "--json"]).stdout)
    fastest = min(document["results"], key=lambda each: each["step_ns"])
    if suggested := document["suggestion"]:
        assert fastest["step_ns"] < suggested["step_ns"]
    what, _, command = CliRunner().invoke(simulate, words).stdout.splitlines()[-1].partition(": ")
    assert what.startswith(f"to train under {fastest['dispatch']} {fastest['hint']}")
    wanted = [word for each in settings.split() for word in ("--set", each)]
    assert shlex.split(command) == ["hpcpipe", "run", job, *wanted]
