"""A text as a row of tokens: those of a tokenizer of the tokenizers library, or its bytes.

The ids are written to a file once and mapped into memory from then on, so a start costs a tokenization only when the
text or the tokenizer is new.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hpcpipe.data.tokenizer import Tokenizer, open_tokenizer
from hpcpipe.data.tokens import Array, Row, open_bytes

PIECE = 1 << 20
"""Bytes of text that are tokenized together, to the next end of a line; no token spans two pieces."""
_RULE = "1"
_SAID_FROM = 32 << 20


def open_text(path: Path, tokenizer: Path | None = None, *, cache: Path | None = None) -> Row:
    """Open a text.

    Parameters
    ----------
    tokenizer
        A tokenizer.json; None for bytes. Special tokens that are written in the text (such as <|endoftext|> between
        documents) are single ids.
    cache
        Folder for the ids, otherwise `hpcpipe/tokens` under XDG_CACHE_HOME or ~/.cache. Where it cannot be written to,
        the ids go to a nameless temporary file.

    Raises
    ------
    ValueError
        The text is not UTF-8, or the tokenizer is none.
    """
    if tokenizer is None:
        return open_bytes(path)
    loaded = open_tokenizer(tokenizer)
    dtype = np.dtype(np.uint16 if loaded.size <= 1 << 16 else np.uint32)
    target = (_folder() if cache is None else cache) / f"{_key(path, loaded)}.{dtype.name}.bin"
    name = f"{path} (tokenized by {tokenizer.name})"
    if not target.exists() and (unnamed := _write(target, loaded, path, dtype)) is not None:
        return Array(name, unnamed)
    if target.stat().st_size == 0:
        raise ValueError(f"{path}: has no tokens")
    return Array(name, np.memmap(target, dtype=dtype, mode="r"))


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hpcpipe" / "tokens"


def _key(path: Path, tokenizer: Tokenizer) -> str:
    state = path.stat()
    what = [_RULE, str(PIECE), str(path.resolve()), str(state.st_size), str(state.st_mtime_ns), tokenizer.digest]
    return blake2b("\0".join(what).encode(), digest_size=16).hexdigest()


def _write(target: Path, tokenizer: Tokenizer, path: Path, dtype: np.dtype) -> np.ndarray | None:
    """Write the ids beside their name and rename; return them mapped where no file can be made there.

    Several ranks may do so at a time: each writes the same.
    """
    partial = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            _tokenize(tokenizer, path, dtype, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        with tempfile.TemporaryFile() as unnamed:
            _tokenize(tokenizer, path, dtype, unnamed)
            if unnamed.tell() == 0:
                raise ValueError(f"{path}: has no tokens") from None
            unnamed.flush()
            return np.memmap(unnamed, dtype=dtype, mode="r")
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return None


def _tokenize(tokenizer: Tokenizer, path: Path, dtype: np.dtype, file: BinaryIO | Any) -> None:
    size, done, said = path.stat().st_size, 0, 0
    for piece in _pieces(path):
        try:
            text = piece.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: byte {done + error.start} is not UTF-8 ({error.reason}); a text for a tokenizer must be"
            ) from None
        file.write(np.array(tokenizer.encode(text), dtype=dtype).tobytes())
        done += len(piece)
        if size >= _SAID_FROM and done * 10 // size > said:
            said = done * 10 // size
            print(f"hpcpipe: tokenizing {path}: {said * 10} %", file=sys.stderr, flush=True)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece + file.readline()
