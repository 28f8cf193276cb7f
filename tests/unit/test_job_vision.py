"""What a job file may say of a vision-language model and its records, and what is refused, where."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from job_text import fault_of, faults_of, place, write_job
from picture_records import JOB, RECORDS, write_lines
from small_tokenizer import write_tokenizer
from tokenizers import Tokenizer

from hpcpipe.data import counted_tokens
from hpcpipe.job import Job, load_job
from hpcpipe.train import batches
from hpcpipe.train.batches import problem_of_records, tokens_per_step

VISION = JOB + "[parallel]\npipeline = 2\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lines(tmp_path)
    return write_job(tmp_path, VISION)


def test_a_job_is_whole_and_comes_back_from_its_resolved_text(path):
    job = load_job(path)
    assert job.model.blocks == 8
    again = Job.from_resolved(job.to_toml())
    assert again.to_toml() == job.to_toml()
    assert again.data.resolved_path == path.parent / "records.jsonl"


@pytest.mark.parametrize(
    ("override", "key", "said"),
    [
        ("model.encoder_dim=30", "encoder_dim", "no multiple of 4"),
        ("model.encoder_heads=3", "encoder_heads", "encoder_heads = 3 does not divide encoder_dim = 32"),
        ("model.heads=3", "heads", "heads = 3 does not divide dim = 32"),
        ("model.vocab_size=256", "vocab_size", "vocab_size = 256 is too small"),
        ("data.max_side=7", "max_side", "max_side = 7 is less than the 8 pixels that are one token"),
        ('data.path="none.jsonl"', "path", "none.jsonl do not exist"),
        ('data.path="small.toml"', "path", "neither a .jsonl nor a .tar file"),
        ("parallel.split=[3, 4]", "split", "split sums to 7 layers, but the model has encoder_layers + projector"),
        ("parallel.pipeline=9", "pipeline", "cannot each hold one of the model's 8 layers"),
        ("model.recompute=[[0, 8]]", "recompute", "recompute names block 8, but the model's 8 blocks are 0 to 7"),
        ("model.channels=4", "channels", "channels"),
        ('data.larger="crop"', "larger", 'larger = "crop" is not known'),
    ],
)
def test_a_wrong_setting_is_refused_by_name(path, override, key, said):
    fault = fault_of(path, override)
    assert said in fault.message
    assert key in override


def test_models_and_data_that_do_not_go_together_are_refused(path, tmp_path):
    (tmp_path / "corpus.txt").write_text("to be or not to be" * 20)
    text = 'kind = "text"\npath = "corpus.txt"\nseq_len = 32'
    mixed = VISION.replace('kind = "image-text"\npath = "records.jsonl"', text)
    fault = fault_of(write_job(tmp_path, mixed))
    assert 'kind = "vlm" cannot learn from [data] kind = "text"' in fault.message
    assert place(fault)[0] == mixed[: mixed.index('kind = "text"')].count("\n") + 1
    blind = '[model]\nkind = "gpt"\nlayers = 2\ndim = 32\nheads = 4\ncontext = 32\n' + VISION[VISION.index("[data]") :]
    fault = fault_of(write_job(tmp_path, blind))
    assert 'kind = "gpt" cannot learn from [data] kind = "image-text"' in fault.message


def test_the_ids_of_a_record_need_room_in_the_vocabulary(path, tmp_path):
    fault = fault_of(path, "model.vocab_size=257")
    assert fault.message == (
        "vocab_size = 257 is too small: the tokens of a text are 256 bytes, and a record has a begin and an end"
    )
    assert fault.hint == "set vocab_size = 258 or leave it out"
    ids = Tokenizer.from_file(str(write_tokenizer(tmp_path / "words.json", "to be or not to be"))).get_vocab_size()
    tokenizer = 'data.tokenizer="words.json"'
    fault = fault_of(path, tokenizer, f"model.vocab_size={ids + 1}")
    assert fault.message == (
        f"vocab_size = {ids + 1} is too small: the ids of words.json go up to {ids - 1}, and a record has a begin and "
        "an end"
    )
    assert fault.hint == f"set vocab_size = {ids + 2}, or a larger one that divides well"
    job = load_job(path, [tokenizer, f"model.vocab_size={ids + 2}"])
    assert problem_of_records(job) == ""
    assert Job.from_resolved(job.to_toml()).data.resolved_tokenizer == tmp_path / "words.json"


def test_a_tokenizer_that_cannot_be_read_is_named(path, tmp_path):
    settings = ("data.tokenizer=words.json", "model.vocab_size=999")
    assert fault_of(path, *settings).message.endswith("words.json does not exist")
    (tmp_path / "words.json").write_text("{}")
    assert fault_of(path, *settings).message == "words.json is no tokenizer of the tokenizers library"
    (tmp_path / "words.json").write_text('{"model": {"vocab": {"a": 0}}}')  # enough for a look, not for the library
    assert "words.json: is no tokenizer" in problem_of_records(load_job(path, settings))


def test_a_tokenizer_that_may_not_be_read_is_named():
    """Root may read all, so it becomes nobody; above tmp_path nobody else may look."""
    as_root = os.geteuid() == 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        write_lines(folder)
        path = write_job(folder, VISION)
        (folder / "words.json").write_text("{}")
        (folder / "words.json").chmod(0)
        if as_root:
            os.seteuid(65534)
        try:
            fault = fault_of(path, "data.tokenizer=words.json", "model.vocab_size=999")
        finally:
            if as_root:
                os.seteuid(0)
    assert fault.message == "words.json cannot be read: Permission denied"


def test_admission_by_cost_is_no_vain_wish_here(path):
    assert not faults_of(path)
    assert load_job(path, ['schedule.admission="pyramid"']).warnings == ()


def test_records_that_a_model_cannot_take_are_a_fault_of_the_input(path):
    assert problem_of_records(load_job(path)) == ""
    said = problem_of_records(load_job(path, ["data.max_side=24"]))
    assert "records.jsonl, line 4: image 4 of 32 x 8 pixels is larger than max_side = 24" in said
    assert "more than context = 20" in problem_of_records(load_job(path, ["model.context=20"]))
    (path.parent / "3-1.png").unlink()
    (path.parent / "records.jsonl").touch()
    batches._indexed.cache_clear()  # as a new process would find it
    assert "records.jsonl, line 4" in problem_of_records(load_job(path))


def test_what_is_held_out_is_part_of_no_step_or_lies_in_a_file_of_its_own(path, tmp_path):
    job = load_job(path, ["data.eval_fraction=0.3"])
    held = {len(RECORDS) - 2, len(RECORDS) - 1}
    assert not held & set(np.unique([batches.image_text_of(job).step(step) for step in range(9)]))
    inside = batches.evaluation_of(job, replica=0, count=counted_tokens)
    assert sum(map(inside.count, range(len(inside)))) == sum(len(_text(RECORDS[record])) + 1 for record in held)
    other = write_lines(tmp_path / "other", RECORDS[:3])
    apart = batches.evaluation_of(load_job(path, [f"data.eval_path={other}"]), replica=0, count=counted_tokens)
    assert sum(map(apart.count, range(len(apart)))) == sum(len(_text(record)) + 1 for record in RECORDS[:3])


def test_records_for_evaluation_that_cannot_be_used_are_faults(path, tmp_path):
    assert "none.jsonl do not exist" in fault_of(path, 'data.eval_path="none.jsonl"').message
    other = write_lines(tmp_path / "other", [([(64, 8)], "wide")])
    said = problem_of_records(load_job(path, [f"data.eval_path={other}", "data.max_side=32"]))
    assert "other/records.jsonl, line 1" in said


def _text(record):
    return record[1].replace("<image>", "").encode()


def test_tokens_of_a_step_are_those_of_its_records(path):
    job = load_job(path, ["batch.microbatches=4", "batch.microbatch_size=2"])  # a step is an epoch
    every = sum((w * h) // 64 for w, h in SIDES) + sum(len(text.encode()) + 2 for text in TEXTS)
    assert tokens_per_step(job, 0) == tokens_per_step(job, 5) == every
    assert abs(tokens_per_step(job) - every) <= 4


SIDES = [(8, 8), (16, 8), (8, 24), *[(24, 16)] * 3, (8, 8), (32, 8), (16, 16), (16, 16), (8, 16), (32, 24)]
TEXTS = [
    "nothing to see",
    "a",
    "wide, high",
    "many",
    "",
    "größer",
    "one large picture",
    "text only, and longer than the others are by some words",
]
