"""What `[tune]` says of the grouping, and what does not go together with it."""

from pathlib import Path

import pytest
from job_text import SYNTHETIC, fault_of, faults_of, place, write_job

from hpcpipe.job import load_job
from hpcpipe.job.tune import show_bytes
from hpcpipe.plan.sizes import parse_bytes

TUNED = f"""\
{SYNTHETIC}\
forward_ms = 5
backward_ms = 10
message_bytes = 1024
[parallel]
pipeline = 4
[batch]
microbatches = 8
microbatch_size = 2
[schedule]
hint = "kfkb"
[tune]
grouping = "on"
memory_limit = "8 KiB"
"""


def tuned(folder: Path) -> Path:
    return write_job(folder, TUNED, corpus=None)


def test_a_tuned_job_is_right_and_resolves_to_itself(tmp_path: Path) -> None:
    job = load_job(tuned(tmp_path), ["tune.microbatch_size=tuned", "device.fixed_ms=0.5"])
    assert job.tune.limit_bytes == 8192
    (tmp_path / "again.toml").write_text(job.to_toml(), encoding="utf-8")
    assert load_job(tmp_path / "again.toml").to_toml() == job.to_toml()


@pytest.mark.parametrize(
    ("overrides", "key", "words"),
    [
        (["schedule.hint=1f1b"], "tune.grouping", 'chooses the k of hint = "kfkb", but the hint is "1f1b"'),
        (["schedule.in_flight=2x"], "schedule.in_flight", 'in_flight = "2x" would be overruled'),
        (["schedule.k=3"], "schedule.k", "k = 3 does not divide microbatches = 8"),
        (["tune.memory_limit=none"], "tune.grouping", "no memory_limit says how much"),
        (["tune.trial=30"], "tune.trial", "trial = 30 steps are more than the interval = 20"),
        (["device.fixed_ms=6"], "device.fixed_ms", "fixed_ms = 6 is more than the whole forward_ms = 5"),
        (["schedule.k=4", 'tune.memory_limit="6 KiB"'], "schedule.k", "micro-batches of 2 needs 2.00 KiB more"),
        (
            ['tune.memory_limit="3 KiB"'],
            "tune.memory_limit",
            '"3 KiB" fits no grouping: even k = 1 with micro-batches of 2 needs 1.00 KiB more on stage 0',
        ),
        (
            ['tune.memory_limit="1 KiB"', "tune.microbatch_size=tuned"],
            "tune.memory_limit",
            "even k = 1 with micro-batches of 1 needs 1.00 KiB more on stage 0",
        ),
        (['tune.memory_limit="5"'], "tune.memory_limit", 'must be "none" or a size in bytes'),
    ],
)
def test_what_does_not_go_together_is_one_fault_with_its_place(
    tmp_path: Path, overrides: list[str], key: str, words: str
) -> None:
    fault = fault_of(tuned(tmp_path), *overrides)
    assert fault.key == key
    assert fault.line > 0
    assert words in fault.message
    assert fault.hint


def test_all_faults_come_at_once_with_their_lines(tmp_path: Path) -> None:
    text = TUNED.replace('hint = "kfkb"', 'hint = "bf"').replace('memory_limit = "8 KiB"', "trial = 50\nmargin = 2.0")
    faults = faults_of(write_job(tmp_path, text, corpus=None))
    lines = text.splitlines()
    found = [lines[place(fault)[0] - 1] for fault in faults]
    assert found == ['grouping = "on"', 'grouping = "on"', "trial = 50", "margin = 2.0"]


@pytest.mark.parametrize("key", ["microbatch_size=tuned", "interval=7", "trial=2", "margin=0.1"])
def test_a_setting_of_the_grouping_that_would_do_nothing_is_refused(tmp_path: Path, key: str) -> None:
    fault = fault_of(tuned(tmp_path), "tune.grouping=off", f"tune.{key}")
    assert 'has no effect with grouping = "off"' in fault.message


@pytest.mark.parametrize(
    ("text", "number"), [("512 MiB", 512 << 20), ("2GB", 2_000_000_000), ("1.5 KiB", 1536), ("7 B", 7), ("1tb", 10**12)]
)
def test_sizes_are_read_in_both_kinds_of_units(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize(
    ("number", "text"), [(7, "7 B"), (1536, "1.50 KiB"), (3 << 20, "3.00 MiB"), (5 << 30, "5.00 GiB")]
)
def test_sizes_are_shown_in_the_unit_that_suits(number: int, text: str) -> None:
    assert show_bytes(number) == text
