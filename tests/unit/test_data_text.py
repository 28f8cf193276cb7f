"""Texts: bytes without a tokenizer, a tokenizer's own ids with one, written once and mapped from then on."""

import json

import numpy as np
import pytest
from small_tokenizer import END, write_tokenizer
from tokenizers import Tokenizer

from hpcpipe.data import open_text, open_tokenizer, text

WORDS = "one two three fish, blue fish; größer als \N{SNOWMAN} and\n\n  indented\tlines\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", WORDS * 20)


def _ids(row):
    return row.read(np.array([0]), len(row))[0].tolist()


def _write(folder, content):
    path = folder / "text.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_without_a_tokenizer_every_byte_is_a_token(tmp_path):
    assert _ids(open_text(_write(tmp_path, bytes(range(256))))) == list(range(256))


def test_the_ids_are_the_librarys_own(tmp_path, tokenizer):
    path = _write(tmp_path, WORDS * 5 + END + WORDS)
    row = open_text(path, tokenizer, cache=tmp_path / "cache")
    loaded = Tokenizer.from_file(str(tokenizer))
    assert _ids(row) == loaded.encode(WORDS * 5 + END + WORDS, add_special_tokens=False).ids
    assert _ids(row).count(loaded.token_to_id(END)) == 1


def test_a_text_has_the_same_ids_whatever_dropout_its_tokenizer_was_saved_with(tmp_path, tokenizer):
    document = json.loads(tokenizer.read_text())
    document["model"]["dropout"] = 0.5
    (tmp_path / "dropping.json").write_text(json.dumps(document))
    expected = Tokenizer.from_file(str(tokenizer)).encode(WORDS * 5, add_special_tokens=False).ids
    assert open_tokenizer(tmp_path / "dropping.json").encode(WORDS * 5) == expected


def test_a_long_text_is_tokenized_in_pieces_that_end_with_a_line_and_loses_nothing(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 100)
    content = WORDS * 40
    row = open_text(_write(tmp_path, content), tokenizer, cache=tmp_path / "cache")
    loaded = Tokenizer.from_file(str(tokenizer))
    assert loaded.decode(_ids(row), skip_special_tokens=False) == content


def test_a_text_is_tokenized_once_and_again_when_text_or_tokenizer_change(tmp_path, tokenizer, monkeypatch):
    path, cache = _write(tmp_path, WORDS), tmp_path / "cache"
    calls = []
    tokenize = text._tokenize
    monkeypatch.setattr(text, "_tokenize", lambda *arguments: calls.append(1) or tokenize(*arguments))
    first = open_text(path, tokenizer, cache=cache)
    again = open_text(path, tokenizer, cache=cache)
    assert len(calls) == 1
    assert _ids(first) == _ids(again)
    assert isinstance(again._array, np.memmap)
    assert [each.suffix for each in cache.iterdir()] == [".bin"]  # nothing half written is left
    _write(tmp_path, WORDS + "more")
    open_text(path, tokenizer, cache=cache)
    other = tmp_path / "other.json"
    other.write_bytes(tokenizer.read_bytes() + b"\n")
    open_text(path, other, cache=cache)
    assert len(calls) == 3


def test_where_no_file_can_be_made_the_ids_are_the_same(tmp_path, tokenizer):
    path = _write(tmp_path, WORDS)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    assert _ids(open_text(path, tokenizer, cache=blocked)) == _ids(open_text(path, tokenizer, cache=tmp_path / "cache"))


def test_a_text_that_is_not_utf_8_is_named_with_the_byte(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(text, "PIECE", 50)
    good = "a line of text\n" * 10
    path = _write(tmp_path, good.encode() + b"caf\xe9 au lait\n")
    with pytest.raises(ValueError, match=r"text\.txt: byte 153 is not UTF-8"):
        open_text(path, tokenizer, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    _write(tmp_path, good)
    with pytest.raises(ValueError, match=r"text\.txt: is no tokenizer"):
        open_text(path, path, cache=tmp_path / "cache")
