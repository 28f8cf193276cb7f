"""Every kind of bad input: one clear fault in its place, with the value that clashes and the way out."""

import os
import pickle
from pathlib import Path

import pytest
from job_text import VALID, fault_of, faults_of, place, write_job

from hpcpipe.job import JobError, load_job


def changed(folder: Path, old: str, new: str) -> Path:
    assert old in VALID
    return write_job(folder, VALID.replace(old, new))


def extended(folder: Path, more: str) -> Path:
    return write_job(folder, VALID + more)


def test_a_missing_file_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    write_job(tmp_path)
    fault = fault_of(tmp_path / "smal.toml")
    assert fault.file == str(tmp_path / "smal.toml")
    assert fault.message == "no such file"
    assert fault.hint == f"did you mean {tmp_path / 'small.toml'}?"


def test_a_folder_is_not_a_job_file(tmp_path: Path) -> None:
    write_job(tmp_path)
    fault = fault_of(tmp_path)
    assert "is a folder" in fault.message
    assert "small.toml" in fault.hint


def test_a_device_or_pipe_is_not_a_job_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert "not a regular file" in fault_of(tmp_path / "pipe.toml").message


def test_an_empty_file_lacks_its_two_required_tables(tmp_path: Path) -> None:
    faults = faults_of(write_job(tmp_path, ""))
    assert [fault.message for fault in faults] == ["the table [data] is missing", "the table [model] is missing"]
    assert 'kind = "gpt"' in faults[1].hint
    assert all(place(fault) == (1, 1) for fault in faults)


def test_bytes_that_are_not_utf_8_are_placed(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, VALID.encode() + b'[job]\nname = "caf\xe9"\n'))
    assert place(fault) == (15, 12)
    assert "0xe9 is not UTF-8" in fault.message


def test_a_binary_file_is_not_shown_as_text(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, b"\x89HDF\r\n\x1a\n\0\0\xff\xff"))
    assert "not text" in fault.message


@pytest.mark.parametrize(
    ("line", "column", "hint"),
    [
        ("hint = bf", 8, 'texts are in quotes: hint = "bf"'),
        ("on = True", 6, "write on = true"),
        ("seed = None", 8, "leave the key out"),
        ("seed: 3", 5, 'with "=" and not ":"'),
        ("seed =", 7, "write a value after seed ="),
        ('path = "corpus.txt', 19, "closing quote"),
        ("split = [2, 2", 14, "missing"),
        ("lr = .5", 6, "write lr = 0.5"),
        ("steps = 1,000", 10, "write steps = 1_000"),
        ("steps = 010", 10, "write steps = 10"),
        ("steps = 10 // few", 12, "comments start with #"),
        ("steps", 6, "key = value"),
        ('path = "C:\\data\\x"', 11, "single quotes"),
        ("[schedule", 10, "[name]"),
    ],
)
def test_malformed_toml_has_its_line_and_column_and_the_cure_of_the_usual_slips(
    tmp_path: Path, line: str, column: int, hint: str
) -> None:
    fault = fault_of(extended(tmp_path, f"{line}\n\n"))
    assert fault.message.startswith("not valid TOML: ")
    assert fault.line == 14
    assert abs(fault.column - column) <= 1, fault
    assert hint in fault.hint, fault


def test_keys_and_tables_that_are_written_twice_are_all_named_with_both_lines(tmp_path: Path) -> None:
    faults = faults_of(extended(tmp_path, 'pipeline = 4\n[model]\nkind = "gpt"\n'))
    assert [place(fault) for fault in faults] == [(14, 1), (15, 2), (16, 1)]
    assert faults[0].message == "the key parallel.pipeline is written twice; the first is on line 13"
    assert faults[1].message == "the table [model] is written twice; the first is on line 1"


@pytest.mark.parametrize(
    ("more", "key", "hint"),
    [
        ("[batch]\nmicrobatch = 4\n", "batch.microbatch", "did you mean microbatches?"),
        ("[schedule]\nin-flight = 4\n", "schedule.in-flight", "did you mean in_flight?"),
        ("[schedule]\nseq_len = 4\n", "schedule.seq_len", "seq_len belongs in [data]"),
        (
            "[comm]\nxyz = 4\n",
            "comm.xyz",
            "known keys: slots, poll, bucket_mb, split_allreduce, check_collectives, cuda_aware, dp_collectives, "
            "tp_collectives",
        ),
        ("[comm.slots]\nx = 4\n", "comm.slots", 'for example slots = "auto" or slots = 4'),
    ],
)
def test_an_unknown_key_names_the_nearest_known_key(tmp_path: Path, more: str, key: str, hint: str) -> None:
    fault = fault_of(extended(tmp_path, more))
    assert fault.key == key
    assert fault.hint == hint


def test_an_unknown_table_names_the_nearest_and_its_keys_are_checked_all_the_same(tmp_path: Path) -> None:
    faults = faults_of(extended(tmp_path, "[shedule]\nhint = 3\n"))
    assert [fault.message for fault in faults] == [
        "unknown table [shedule]",
        'hint must be "gpipe", "1f1b", "kfkb", "interleaved", "zb-h1", "zb-h2", "zbv", "critical", "bf", "fb", '
        '"b-priority", "f-priority", "bfw" or "file:PATH", got 3',
    ]
    assert faults[0].hint == "did you mean [schedule]?"
    assert place(faults[1]) == (15, 8)


def test_a_misspelt_required_key_gives_one_fault_and_not_two(tmp_path: Path) -> None:
    fault = fault_of(changed(tmp_path, "layers = 4", "layer = 4"))
    assert fault.message == "unknown key layer in [model]"
    assert fault.hint == "did you mean layers?"


def test_a_missing_required_key_is_shown_at_its_table_with_an_example(tmp_path: Path) -> None:
    fault = fault_of(changed(tmp_path, "layers = 4\n", ""))
    assert place(fault) == (1, 2)
    assert fault.message == "[model] needs the key layers: transformer blocks"
    assert fault.hint == "add layers = 4"


def test_a_key_outside_all_tables_is_told_its_table(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, "steps = 3\n" + VALID))
    assert fault.hint == "write it under [job]"


def test_a_list_of_tables_and_a_value_in_a_tables_place_are_refused(tmp_path: Path) -> None:
    assert fault_of(extended(tmp_path, "[[events]]\non = true\n")).hint == "write [events], not [[events]]"
    assert "batch must be a table" in fault_of(write_job(tmp_path, "batch = 3\n" + VALID)).message


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        (
            '[job]\nsteps = "10"',
            'steps must be a whole number, got the text "10"',
            "write it without quotes: steps = 10",
        ),
        ("[job]\nsteps = 10.0", "steps must be a whole number, got 10.0", "write steps = 10"),
        ("[job]\nsteps = 1.5", "steps must be a whole number, got 1.5", "for example steps = 100"),
        ("[job]\nsteps = true", "steps must be a whole number, got the boolean true", "for example steps = 100"),
        ("[job]\nname = 7", "name must be a text in quotes, got 7", 'write it in quotes: name = "7"'),
        ("[events]\non = 1", "on must be true or false, got 1", "for example on = true"),
        ("[optimizer]\nlr = [1]", "lr must be a number, got the list [1]", "for example lr = 0.001"),
        ("[optimizer]\nlr = inf", "lr must be a finite number, got inf", "for example lr = 0.001"),
        ("[optimizer]\nlr = 0", "lr must be above 0, got 0", "for example lr = 0.001 (highest learning rate)"),
        (
            "[optimizer]\nname = 'adamww'",
            'name = "adamww" is not known',
            'did you mean "adamw"? it must be "adamw", "adam" or "sgd"',
        ),
        (
            "[device]\nkind = 1979-05-27",
            'kind must be "auto", "cpu", "cuda" or "emulated", got the date 1979-05-27',
            'for example kind = "auto"',
        ),
        (
            "[optimizer]\nclip = 0",
            'clip must be "off" or a number above 0, got 0',
            'for example clip = 1.0 or clip = "off"',
        ),
        (
            "[precision]\nloss_scale = 'static'",
            'loss_scale must be "auto", "dynamic" or a number above 0, got the text "static"',
            'for example loss_scale = "dynamic"',
        ),
        ("[job]\nname = 'a/b'", 'name must be usable as the name of a folder, got "a/b"', 'no "/"'),
    ],
)
def test_a_wrong_value_says_what_was_got_what_is_wanted_and_an_example(
    tmp_path: Path, more: str, message: str, hint: str
) -> None:
    fault = fault_of(extended(tmp_path, more + "\n"))
    assert fault.message == message
    assert fault.hint.startswith(hint)
    assert fault.line == 15


def test_a_number_of_thousands_of_digits_is_a_fault_and_not_a_crash(tmp_path: Path) -> None:
    for digits in (30, 5000):
        assert faults_of(extended(tmp_path, f"[job]\nsteps = 1{'0' * digits}\n"))


def test_deep_nesting_is_a_fault_and_not_a_crash(tmp_path: Path) -> None:
    assert faults_of(extended(tmp_path, f"[job]\nsteps = {'[' * 20000}\n"))


def test_the_number_of_ranks_must_be_the_product_of_the_mesh(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    assert faults_of(path, ranks=2) == ()
    odd = fault_of(path, ranks=3)
    assert place(odd) == (13, 12)
    assert odd.message == "[parallel] needs 2 ranks (pipeline 2 x data 1 x tensor 1), but there are 3"
    assert odd.hint == "start 2 ranks, or set pipeline = 3"
    assert fault_of(path, ranks=4).hint == "start 2 ranks, or set data = 2"
    divided = fault_of(path, "parallel.data=2", ranks=3).hint
    assert divided == "start 4 ranks, or set a pipeline x data of 3 (3 is not a multiple of 2)"


def test_more_stages_than_layers_are_refused(tmp_path: Path) -> None:
    fault = fault_of(changed(tmp_path, "pipeline = 2", "pipeline = 8"))
    assert place(fault) == (13, 12)
    assert fault.message == "pipeline = 8 stages cannot each hold one of the model's 4 layers"
    assert fault.hint == "set pipeline to at most 4, or [model] layers to at least 8"


@pytest.mark.parametrize(("value", "message"), [("0", "at least 1, got 0"), ("-3", "at least 1, got -3")])
def test_fewer_than_one_microbatch_is_refused(tmp_path: Path, value: str, message: str) -> None:
    fault = fault_of(extended(tmp_path, f"[batch]\nmicrobatches = {value}\n"))
    assert place(fault) == (15, 16)
    assert message in fault.message


def test_a_sequence_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    fault = fault_of(changed(tmp_path, 'path = "corpus.txt"', 'path = "corpus.txt"\nseq_len = 33'))
    assert place(fault) == (11, 11)
    assert fault.message == "seq_len = 33 is longer than the model's context = 32"


def test_missing_data_are_named_by_the_path_that_was_tried(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, corpus=None))
    assert place(fault) == (10, 8)
    assert str(tmp_path / "corpus.txt") in fault.message
    assert "job file's folder" in fault.hint


def test_empty_data_are_refused(tmp_path: Path) -> None:
    assert fault_of(write_job(tmp_path, corpus=b"")).message.endswith("corpus.txt is empty")


def test_data_shorter_than_one_sequence_and_its_last_target_are_refused(tmp_path: Path) -> None:
    assert faults_of(write_job(tmp_path, corpus=b"x" * 33)) == ()
    fault = fault_of(write_job(tmp_path, corpus=b"x" * 32))
    assert "holds 32 tokens, but one sequence needs seq_len + 1 = 33" in fault.message
    assert fault.hint == "name a longer file, or set seq_len to at most 31"


def test_a_folder_as_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    assert "is a folder" in fault_of(changed(tmp_path, "corpus.txt", "texts")).message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("package:no_such_pkg/a.txt", "no package named no_such_pkg is installed"),
        ("package:pydoc_data/no_such.txt", "does not exist"),
        ("package:pydoc_data", "does not have the form"),
        ("package:pydoc_data/../secret", "does not have the form"),
        ("package:json.tool/a.txt", "does not have the form"),
        ("package:this/a.txt", "is a single module"),
    ],
)
def test_data_in_a_package_that_cannot_be_found_are_refused(tmp_path: Path, path: str, message: str) -> None:
    assert message in fault_of(changed(tmp_path, "corpus.txt", path)).message


def test_heads_that_do_not_divide_the_width_are_refused_with_widths_that_fit(tmp_path: Path) -> None:
    fault = fault_of(changed(tmp_path, "heads = 4", "heads = 3"))
    assert fault.message == "heads = 3 does not divide dim = 64"
    assert fault.hint == "set dim to a multiple of 3, such as 63 or 66, or change heads"


def test_a_vocabulary_too_small_for_bytes_is_refused(tmp_path: Path) -> None:
    assert "vocab_size = 128" in fault_of(changed(tmp_path, "dim = 64", "dim = 64\nvocab_size = 128")).message


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("[2, 1, 1]", ["split lists 3 stages, but pipeline = 2"]),
        ("[2, 1]", ["split sums to 3 layers, but the model has layers = 4"]),
        ("[4, 0]", ["split[1] must be a whole number of at least 1, got 0"]),
        ("[]", ["split must list the layers of each stage, got an empty list"]),
        ("2", ['split must be "auto" or a list with the layers of each stage, got 2']),
        ('"even"', ['split must be "auto" or a list with the layers of each stage, got the text "even"']),
        ("[2, 2.0]", ["split[1] must be a whole number of at least 1, got 2.0"]),
    ],
)
def test_a_wrong_split_gives_one_fault(tmp_path: Path, value: str, messages: list[str]) -> None:
    faults = faults_of(extended(tmp_path, f"split = {value}\n"))
    assert [fault.message for fault in faults] == messages


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("0", "in_flight must be at least 1, got 0"),
        ("2.5", "in_flight must be one of the known caps, got 2.5"),
        ("true", "in_flight must be one of the known caps, got the boolean true"),
        ('"3"', 'in_flight must be a number without quotes, got the text "3"'),
        ('"0x"', 'in_flight must be a multiple above 0, got "0x"'),
        ('"twice"', 'in_flight must be one of the known caps, got the text "twice"'),
        ("[2, 0]", "in_flight[1] must be a whole number of at least 1, got 0"),
        ("[2, 1, 1]", "in_flight lists 3 stages, but pipeline = 2"),
        ("{ a = 1 }", "in_flight must be one of the known caps, got the table {a = 1}"),
    ],
)
def test_a_wrong_in_flight_cap_gives_one_fault(tmp_path: Path, value: str, message: str) -> None:
    assert fault_of(extended(tmp_path, f"[schedule]\nin_flight = {value}\n")).message == message


@pytest.mark.parametrize("value", ['"many"', "0", "1.5", "[1]", "true"])
def test_wrong_slots_give_one_fault(tmp_path: Path, value: str) -> None:
    fault = fault_of(extended(tmp_path, f"[comm]\nslots = {value}\n"))
    assert fault.message.startswith('slots must be "auto" or a whole number of at least 1, got ')


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "1e303", "true", '"25"', '"large"', "[1]"])
def test_a_wrong_bucket_size_gives_one_fault(tmp_path: Path, value: str) -> None:
    fault = fault_of(extended(tmp_path, f"[comm]\nbucket_mb = {value}\n"))
    assert fault.key == "comm.bucket_mb"
    assert fault.message.startswith('bucket_mb must be "auto" or a number above 0 and at most 1e+09, got ')


@pytest.mark.parametrize(("hint", "filled"), [("gpipe", 4), ("1f1b", 2)])
def test_fewer_slots_than_a_fixed_order_fills_are_refused(tmp_path: Path, hint: str, filled: int) -> None:
    job = changed(tmp_path, "pipeline = 2", "pipeline = 3")
    fixed = (f"schedule.hint={hint}", "schedule.dispatch=fixed", "batch.microbatches=4")
    fault = fault_of(job, *fixed, f"comm.slots={filled - 1}")
    assert fault.key == "comm.slots"
    assert f"at least {filled}" in fault.hint
    assert load_job(job, [*fixed, f"comm.slots={filled}"])
    assert load_job(job, [f"schedule.hint={hint}", "batch.microbatches=4", "comm.slots=1"])


def test_waiting_for_a_rule_is_refused_and_an_order_named(tmp_path: Path) -> None:
    fault = fault_of(extended(tmp_path, '[schedule]\nhint = "bf"\ndispatch = "fixed"\n'))
    assert fault.key == "schedule.dispatch"
    assert fault.hint == 'set hint = "1f1b", or dispatch = "ready"'


def test_a_setting_of_the_other_optimizer_has_no_effect_and_is_refused(tmp_path: Path) -> None:
    assert "momentum = 0.9 has no effect" in fault_of(extended(tmp_path, "[optimizer]\nmomentum = 0.9\n")).message
    sgd = '[optimizer]\nname = "sgd"\nmomentum = 0.9\n'
    assert faults_of(extended(tmp_path, sgd)) == ()
    assert "eps = 0.1 has no effect" in fault_of(extended(tmp_path, sgd + "eps = 0.1\n")).message


@pytest.mark.parametrize(
    ("more", "key", "message"),
    [
        ("min_lr = 1e-4\n", "min_lr", 'has no effect with schedule = "constant"'),
        ('schedule = "linear"\nlr = 1e-3\nmin_lr = 0.01\n', "min_lr", "min_lr = 0.01 is above lr = 0.001"),
        ('clip_scope = "stage"\n', "clip_scope", 'has no effect with clip = "off"'),
        ("max_skips = 3\n", "max_skips", 'has no effect with nonfinite = "stop"'),
    ],
)
def test_settings_of_the_optimizer_that_contradict_each_other_are_refused(
    tmp_path: Path, more: str, key: str, message: str
) -> None:
    fault = fault_of(extended(tmp_path, f"[optimizer]\n{more}"))
    assert fault.key == f"optimizer.{key}"
    assert message in fault.message


def test_settings_of_the_optimizer_that_go_together_are_taken(tmp_path: Path) -> None:
    text = '[optimizer]\nschedule = "linear"\nmin_lr = 1e-4\nclip = 1\nclip_scope = "stage"\nmax_skips = 3\n'
    assert faults_of(extended(tmp_path, text + '[precision]\ncompute = "fp16"\n')) == ()


def test_tensorboard_that_is_not_installed_is_a_fault_with_the_line_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcpipe.job.checks.find_spec", lambda _name: None)
    fault = fault_of(extended(tmp_path, "[job]\ntensorboard = true\n"))
    assert fault.key == "job.tensorboard"
    assert "pip install 'hpcpipe[tensorboard]'" in fault.hint


def test_slices_that_are_not_even_are_refused(tmp_path: Path) -> None:
    fault = fault_of(extended(tmp_path, "tensor = 8\n"))
    assert fault.message == "tensor = 8 does not divide heads = 4"
    assert fault.hint == "set tensor to 1, 2 or 4, or make heads a multiple of 8"
    assert place(fault) == (14, 10)
    both = fault_of(extended(tmp_path, "tensor = 3\n"))
    assert both.message == "tensor = 3 does not divide heads = 4 and vocab_size = 256"
    llama = faults_of(extended(tmp_path, "tensor = 4\n"), 'model.kind="llama"', "model.kv_heads=2", "model.mlp_dim=48")
    assert [fault.message for fault in llama] == ["tensor = 4 does not divide kv_heads = 2"]
    assert faults_of(extended(tmp_path, "tensor = 4\n")) == ()


def test_settings_of_tensor_slices_without_an_effect_are_refused(tmp_path: Path) -> None:
    propose = '[schedule]\nagreement = "propose"\n'
    alone = fault_of(extended(tmp_path, propose))
    assert alone.message == 'agreement = "propose" has no effect with tensor = 1: nobody is asked'
    fixed = fault_of(extended(tmp_path, f'tensor = 2\n{propose}hint = "1f1b"\ndispatch = "fixed"\n'))
    assert fixed.hint == 'remove agreement, or set dispatch = "ready"'
    checked = fault_of(extended(tmp_path, "[comm]\ncheck_collectives = true\n"))
    assert checked.message == "check_collectives = true has no effect with tensor = 1: no collective belongs to a task"
    good = extended(tmp_path, f"tensor = 2\n{propose}[comm]\ncheck_collectives = true\n")
    assert faults_of(good) == ()


def test_five_different_faults_are_reported_together_and_sorted_by_place(tmp_path: Path) -> None:
    text = (
        VALID.replace("dim = 64", 'dim = "64"')
        .replace("corpus.txt", "missing.txt")
        .replace("pipeline = 2", "pipeline = 9")
        + "[batch]\nmicrobatches = 0\n[schedul]\n"
    )
    faults = faults_of(write_job(tmp_path, text))
    assert [fault.key for fault in faults] == [
        "model.dim",
        "data.path",
        "parallel.pipeline",
        "batch.microbatches",
        "schedul",
    ]
    assert [place(fault) for fault in faults] == sorted(place(fault) for fault in faults)


def test_a_wrong_value_does_not_set_off_the_rules_that_look_at_it(tmp_path: Path) -> None:
    assert fault_of(changed(tmp_path, "context = 32", "context = 0")).key == "model.context"
    assert fault_of(changed(tmp_path, "pipeline = 2", 'pipeline = "2"'), ranks=7).key == "parallel.pipeline"


def test_an_error_reads_well_as_text_and_survives_pickling(tmp_path: Path) -> None:
    path = changed(tmp_path, "heads = 4", "heads = 0")
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert str(caught.value).startswith(f"{path}:5:9: heads must be at least 1, got 0")
    assert pickle.loads(pickle.dumps(caught.value)).faults == caught.value.faults
