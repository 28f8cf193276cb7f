"""Job files about data and code of one's own: every fault in its place, found without reading or importing either."""

import json
import os
from pathlib import Path

import pytest
from job_text import VALID, fault_of, faults_of, write_job

from hpcpipe.job import load_job
from hpcpipe.train.own_model import problem_with

OWN = """\
[model]
kind = "my_model:model"

[data]
kind = "my_model:data"
"""
DOCS = Path(__file__).parents[2] / "docs" / "how-to"


def _tokenizer(folder, *, words=300, added=()):
    vocabulary = {f"w{i}": i for i in range(words)}
    document = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": i, "content": f"<{i}>"} for i in added]}
    (folder / "tokenizer.json").write_text(json.dumps(document))


def test_a_tokenizer_needs_a_vocabulary_that_holds_its_ids(tmp_path):
    _tokenizer(tmp_path, words=300, added=(301,))
    path = write_job(tmp_path)
    fault = fault_of(path, "data.tokenizer=tokenizer.json")
    assert fault.message == "vocab_size = 256 is too small: the ids of tokenizer.json go up to 301"
    assert fault.hint == "set vocab_size = 302, or a larger one that divides well"
    assert faults_of(path, "data.tokenizer=tokenizer.json", "model.vocab_size=302") == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tokenizer.json does not exist"),
        (b"", "tokenizer.json is empty"),
        (b"{}", "tokenizer.json is no tokenizer of the tokenizers library"),
        (b"\xff\xfe", "tokenizer.json is no tokenizer of the tokenizers library"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    fault = fault_of(write_job(tmp_path), "data.tokenizer=tokenizer.json", "model.vocab_size=999")
    assert fault.message.endswith(message)


def test_settings_of_an_evaluation_need_something_held_out(tmp_path):
    path = write_job(tmp_path)
    for key in ("eval_every", "eval_samples", "eval_microbatch_size"):
        fault = fault_of(path, f"data.{key}=3")
        assert fault.message == f"{key} = 3 has no effect: nothing is held out for evaluation"
        assert fault.hint == f"set eval_fraction or eval_path, or remove {key}"
        assert faults_of(path, f"data.{key}=3", "data.eval_fraction=0.1") == ()
    assert faults_of(path, "data.eval_every=3", "data.eval_path=corpus.txt") == ()
    assert "both set" in fault_of(path, "data.eval_fraction=0.1", "data.eval_path=corpus.txt").message
    assert fault_of(path, "data.eval_path=absent.txt").message.endswith("absent.txt does not exist")
    assert "below 1" in fault_of(path, "data.eval_fraction=1").message


def test_keys_of_tokens_go_with_tokens_and_a_path_of_theirs_is_checked(tmp_path):
    path = write_job(tmp_path)
    fault = fault_of(path, "data.end_of_document=3")
    assert (fault.message, fault.hint) == (
        "unknown key end_of_document in [data]",
        'end_of_document goes with kind = "tokens"',
    )
    assert faults_of(path, "data.kind=tokens", "data.end_of_document=3") == ()
    assert "does not exist" in fault_of(path, "data.kind=tokens", "data.path=absent.bin").message


def test_a_kind_is_one_of_the_known_or_a_module_and_a_function(tmp_path):
    path = write_job(tmp_path)
    assert '"module:function"' in fault_of(path, "data.kind=texts").hint
    (tmp_path / "my_model.py").write_text("")
    fault = fault_of(write_job(tmp_path, OWN), "model.kind=my model:3")
    assert fault.message == 'kind = "my model:3" does not have the form "module:function"'


def test_the_module_of_a_function_must_be_there_but_is_not_imported(tmp_path):
    path = write_job(tmp_path, OWN)
    faults = faults_of(path)
    assert [fault.message for fault in faults] == [
        f"there is no module my_model in {tmp_path}, and none is installed"
    ] * 2
    assert [(fault.line, fault.column) for fault in faults] == [(2, 8), (5, 8)]
    (tmp_path / "my_model.py").write_text("raise RuntimeError\n")
    assert faults_of(path) == ()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "my_model.py").rename(tmp_path / "elsewhere" / "my_model.py")
    assert len(faults_of(path)) == 2
    folders = ("model.import_from=elsewhere", "data.import_from=elsewhere")
    assert load_job(path, folders).model.folder == tmp_path / "elsewhere"


def test_a_text_for_an_own_model_needs_a_length_of_its_own(tmp_path):
    (tmp_path / "my_model.py").write_text("")
    path = write_job(tmp_path, VALID.replace('kind = "gpt"\nlayers = 4\ndim = 64\nheads = 4\ncontext = 32', OWN[8:31]))
    assert fault_of(path).message.startswith("[data] needs the key seq_len")
    assert faults_of(path, "data.seq_len=8") == ()


def test_the_example_of_the_documentation_can_be_trained(tmp_path):
    blocks = (DOCS / "own-model.md").read_text().split("```")
    (tmp_path / "my_model.py").write_text(blocks[1].removeprefix("python"))
    (tmp_path / "job.toml").write_text(blocks[3].removeprefix("toml"))
    job = load_job(tmp_path / "job.toml")
    assert problem_with(job) == ""


def test_the_keys_in_the_documentation_of_data_are_known(tmp_path):
    block = (DOCS / "own-data.md").read_text().split("```toml")[1].split("```")[0]
    path = write_job(tmp_path, VALID.replace("[data]\n", block.lstrip()))
    assert load_job(path).data.eval_samples == 1000


@pytest.mark.parametrize("path", ["~nobody-of-this-name/corpus.txt", "~/corpus.txt"])
def test_a_home_that_is_not_there_is_a_path_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A container may run as a user without a name or home."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    fault = fault_of(write_job(tmp_path), f"data.path='{path}'")
    assert (fault.key, "does not exist" in fault.message) == ("data.path", True)
