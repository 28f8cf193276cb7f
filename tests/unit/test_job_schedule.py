"""Job files of emulated devices, chunks and every hint: what they become, and what does not go together."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from job_text import SYNTHETIC, VALID, fault_of, faults_of, write_job

from hpcpipe.cli import main
from hpcpipe.job import Job, load_job
from hpcpipe.job.device import Emulated
from hpcpipe.job.injected import COMPUTE, NETWORK
from hpcpipe.job.planned import schedule_of
from hpcpipe.plan import ORDERS, RULES
from hpcpipe.plan.hints import SPLIT, placement_of
from hpcpipe.plan.hints.table import write_table
from hpcpipe.train.layout import problem_with_caps

EMULATED = f"""\
{SYNTHETIC}\
forward_ms = 5
backward_ms = [10, 12]
weight_ms = 5.0
[parallel]
pipeline = 2
[schedule]
hint = "bf"
"""


def emulated(folder: Path, *replaced: tuple[str, str]) -> Path:
    text = EMULATED
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    return write_job(folder, text, corpus=None)


def test_an_emulated_job_needs_no_data_and_resolves_to_itself(tmp_path: Path) -> None:
    job = load_job(
        emulated(tmp_path),
        ['variability.compute={ model = "lognormal", sigma = 0.6 }', 'variability.network={ model = "bursts" }'],
    )
    assert isinstance(job.device, Emulated)
    assert [job.device.of("backward_ms", stage) for stage in (0, 1)] == [10.0, 12.0]
    assert job.device.of("forward_ms", 1) == 5.0
    (tmp_path / "again.toml").write_text(job.to_toml(), encoding="utf-8")
    assert load_job(tmp_path / "again.toml").to_toml() == job.to_toml()


@pytest.mark.parametrize("hint", [*ORDERS, *RULES])
def test_every_hint_is_accepted_and_brings_its_chunks(tmp_path: Path, hint: str) -> None:
    job = load_job(emulated(tmp_path), [f"schedule.hint={hint}", "batch.microbatches=6"])
    assert job.chunks == (2 if hint in ("interleaved", "zbv", "critical") else 1)
    assert job.placement.shape == ("v" if hint in ("zbv", "critical") else "round-robin")
    if hint in ORDERS:
        assert [len(order) % 6 for order in job.orders()] == [0, 0]


def test_an_unknown_hint_names_the_nearest(tmp_path: Path) -> None:
    fault = fault_of(emulated(tmp_path), "schedule.hint=zb1")
    assert fault.message == 'hint = "zb1" is not known'
    assert fault.hint.startswith('did you mean "zbv"?') or fault.hint.startswith('did you mean "zb-h1"?')


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("parallel.chunks=3 schedule.hint=critical", 'hint = "critical" has at most 2 chunks', "set chunks = 2"),
        ("parallel.chunks=3 schedule.hint=zbv", 'chunks = 3, but hint = "zbv" has 2 chunks a stage', "set chunks = 2"),
        ("schedule.k=2", 'k = 2 has no effect with hint = "bf"', 'set hint = "kfkb"'),
        ("schedule.k=9 schedule.hint=kfkb", "k = 9 is more than the 8 micro-batches of a step", "set k to at most 8"),
        ("schedule.stash=2x", 'stash = "2x" has no effect with hint = "bf"', "a hint that splits"),
        ("schedule.stash=[1]", "stash lists 1 stage, but pipeline = 2", "list 2 caps"),
        ("schedule.dispatch=fixed schedule.hint=bfw", 'hint = "bfw" is none', 'set hint = "1f1b"'),
        ("device.weight_ms=0 schedule.hint=zbv", "weight_ms = 0 says that it cannot be split", "often a half"),
        ("device.weight_ms=11", "weight_ms = 11 of stage 0 is more than its whole backward", "the part of backward_ms"),
        ("device.forward_ms=[1,2,3]", "forward_ms lists 3 stages, but pipeline = 2", "list 2 numbers"),
        ("device.forward_ms=[1,-2]", "forward_ms[1] must be a number from 0 on, got -2", "for example 5.0"),
        ("device.message_bytes=[1,2,3]", "message_bytes lists 3 stages, but pipeline = 2", "list 2 numbers"),
        (
            "device.message_bytes=[1,-2]",
            "message_bytes[1] must be a whole number from 0 to 2147483647, got -2",
            "for example 65536",
        ),
        ("model.layers=3", "unknown key layers in [model]", 'layers goes with kind = "gpt"'),
        (
            'variability.compute={model="straggler",stage=2}',
            "stage = 2 is not in a pipeline of 2 stages",
            "stages count from 0 to 1",
        ),
        ('variability.compute={model="encoder",stages=3}', "stages = 3 is more than pipeline = 2", "at most 2"),
        (
            'variability.compute={model="lognormal",sigma=-1}',
            "compute is wrong: sigma must be greater than or equal to 0",
            '"lognormal" has sigma',
        ),
        ('variability.compute={model="lognormale"}', "compute has the unknown model", 'did you mean "lognormal"?'),
        ("variability.network={base_ms=1}", "network needs a model", '"constant", "lognormal" or "bursts"'),
        ("variability.network=3", "network must be a table with a model, got 3", "for example"),
    ],
)
def test_what_does_not_go_together_is_one_fault_with_the_way_out(
    tmp_path: Path, override: str, message: str, hint: str
) -> None:
    faults = faults_of(emulated(tmp_path), *override.split())
    said = [fault for fault in faults if message in fault.message]
    assert said, faults
    assert hint in said[0].hint


def test_real_and_synthetic_do_not_mix(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, VALID), "device.kind=emulated", "device.forward_ms=1", "device.backward_ms=2")
    assert "[model] and [data] are real" in fault.message
    fault = fault_of(write_job(tmp_path, VALID), 'variability.network={ model = "constant" }')
    assert "varies only what an emulated device does" in fault.message


def test_virtual_stages_need_layers_and_split_entries(tmp_path: Path) -> None:
    path = write_job(tmp_path, VALID)
    assert "2 stages x 3 chunks" in fault_of(path, "schedule.hint=bf", "parallel.chunks=3").message
    assert "pipeline x chunks = 4" in fault_of(path, "parallel.chunks=2", "parallel.split=[2,2]").message
    assert load_job(path, ["parallel.chunks=2", "parallel.split=[1,1,1,1]"]).chunks == 2


@pytest.mark.parametrize(
    ("settings", "chunks"),
    [
        ((), 2),
        (("model.layers=3",), 1),
        (("parallel.split=[3,1]",), 1),
        (("parallel.split=[1,1,1,1]",), 2),
        (("parallel.pipeline=1",), 1),
        (("schedule.hint=bf",), 1),
    ],
)
def test_the_usual_hint_takes_two_chunks_where_the_layers_are_there_for_them(
    tmp_path: Path, settings: tuple[str, ...], chunks: int
) -> None:
    job = load_job(write_job(tmp_path, VALID), settings)
    assert job.chunks == chunks
    assert job.placement.shape == ("v" if chunks == 2 else "round-robin")


@pytest.mark.parametrize(("key", "models"), [("compute", COMPUTE), ("network", NETWORK)])
def test_every_model_of_variability_has_defaults(tmp_path: Path, key: str, models: dict[str, type]) -> None:
    for name in models:
        job = load_job(emulated(tmp_path), [f'variability.{key}={{ model = "{name}" }}'])
        assert getattr(job.variability, key).model == name


def _orders_of(hint: str, microbatches: int = 4) -> str:
    orders = [ORDERS[hint](stage=stage, stages=2, microbatches=microbatches) for stage in (0, 1)]
    return write_table(orders, placement_of(hint, stages=2), split=hint in SPLIT)


def test_an_order_from_a_file_brings_its_placement_and_is_kept_by_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text(_orders_of("zbv"), encoding="utf-8")
    job = load_job(emulated(tmp_path), ["schedule.hint=file:order.csv", "batch.microbatches=4"])
    assert (job.chunks, job.placement.shape, job.splits) == (2, "v", True)
    assert job.orders() == tuple(ORDERS["zbv"](stage=stage, stages=2, microbatches=4) for stage in (0, 1))
    assert schedule_of(job).orders == job.orders()
    assert Job.from_resolved(job.to_toml()).orders() == job.orders()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, "order.csv cannot be read: No such file or directory"),
        ("0F0,0B0\n1F0,1X0\n", "order.csv: row 2, column 2:"),
        (_orders_of("1f1b", 3), "does not fit microbatches = 4"),
    ],
)
def test_a_table_that_is_missing_wrong_or_of_another_size_is_one_fault(
    tmp_path: Path, table: str | None, message: str
) -> None:
    if table is not None:
        (tmp_path / "order.csv").write_text(table, encoding="utf-8")
    fault = fault_of(emulated(tmp_path), "schedule.hint=file:order.csv", "batch.microbatches=4")
    assert message in fault.message
    assert fault.key == "schedule.hint"


@pytest.mark.parametrize(("key", "hint"), [("in_flight", "bf"), ("stash", "bfw")])
def test_caps_in_bytes_that_hold_no_micro_batch_are_refused_where_its_size_is_known(
    tmp_path: Path, key: str, hint: str
) -> None:
    job, cap = emulated(tmp_path), f"schedule.{key}=1 KB"
    fault = fault_of(job, f"schedule.hint={hint}", cap, "device.message_bytes=[1000,1001]")
    assert (fault.key, "'1 KB' on stage 1" in fault.message) == (f"schedule.{key}", True)
    for fitting in ("[1000,1000]", "0"):
        assert load_job(job, [f"schedule.hint={hint}", cap, f"device.message_bytes={fitting}"])
    faults = faults_of(job, f"schedule.hint={hint}", cap, "device.message_bytes=[1,2,3]")
    assert [fault.key for fault in faults] == ["device.message_bytes"]


def test_caps_in_bytes_that_hold_no_micro_batch_of_a_model_are_refused_before_it_starts(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    cap = ["--set", "schedule.in_flight=1 KB"]
    result = CliRunner().invoke(main, ["run", str(job), "--dry-run", *cap])
    assert result.exit_code == 2
    assert "in-flight cap '1 KB' on stage 0: one micro-batch stashes" in result.stderr
    assert "none fits" in problem_with_caps(load_job(job, cap[1:]))
    assert problem_with_caps(load_job(job)) == ""


def test_caps_in_bytes_are_met_by_the_sizes_of_activations(tmp_path: Path) -> None:
    job = load_job(emulated(tmp_path), ["device.message_bytes=1000", "schedule.in_flight=3 kB"])
    assert [limits.in_flight for limits in schedule_of(job, activation_bytes=[1000.0, 1500.0]).limits] == [3, 2]
    with pytest.raises(ValueError, match="bytes"):
        schedule_of(job)


def test_a_cap_that_is_known_to_be_slow_is_a_warning_with_its_place_and_no_fault(tmp_path: Path) -> None:
    path = emulated(tmp_path, ("pipeline = 2", "pipeline = 4"), ("[10, 12]", "10"))
    job = load_job(path, ["schedule.in_flight=2"])
    (warning,) = job.warnings
    assert warning.key == "schedule.in_flight"
    assert "on stage 0 and 1" in warning.message, "1F1B needs 4, 3, 2 and 1"
    assert load_job(path, ["schedule.in_flight=4"]).warnings == ()
    assert load_job(path).warnings == ()
    result = CliRunner().invoke(main, ["validate", str(path), "--set", "schedule.in_flight=2"])
    assert result.exit_code == 0
    assert "warning: in_flight = 2" in result.stderr


def test_slots_hide_no_other_fault_of_a_fixed_order(tmp_path: Path) -> None:
    faults = faults_of(
        emulated(tmp_path), "schedule.hint=zbv", "schedule.dispatch=fixed", "parallel.chunks=3", "comm.slots=2"
    )
    assert [fault.key for fault in faults] == ["parallel.chunks"]
    faults = faults_of(
        emulated(tmp_path), "schedule.hint=kfkb", "schedule.dispatch=fixed", "schedule.k=9", "comm.slots=2"
    )
    assert [fault.key for fault in faults] == ["schedule.k"]


def test_slots_that_others_than_the_oldest_micro_batch_could_fill_are_refused(tmp_path: Path) -> None:
    """Stage 0 may have 2 in flight and stage 1 stash 2 besides, so 4 of its activations may lie at stage 1."""
    job = emulated(tmp_path)
    fault = fault_of(job, "schedule.hint=bfw", "comm.slots=3")
    assert (fault.key, fault.hint) == ("comm.slots", 'set slots to at least 4 or to "auto"')
    assert load_job(job, ["schedule.hint=bfw", "comm.slots=4"])
    assert load_job(job, ["schedule.hint=bf", "comm.slots=1"])
    assert fault_of(job, "schedule.hint=bf", "parallel.chunks=2", "comm.slots=1").key == "comm.slots"
    assert load_job(job, ["schedule.hint=bf", "parallel.chunks=2", "comm.slots=8", "batch.microbatches=8"])
