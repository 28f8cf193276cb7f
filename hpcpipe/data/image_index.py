"""What a set of image-text records holds, without decoding any image: where each lies, image sizes, tokens of texts.

Read once and kept in the user's cache folder, so that the next start need not open every image; it knows nothing of
batches or models.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hpcpipe.data.image_scan import MARK, RecordError, records_of
from hpcpipe.data.tokenizer import BYTES, Tokenizer

FORMAT = 2
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Index:
    """The records of one or more files, in their order.

    Parameters
    ----------
    source, begin, size
        By record: number of its file, and where there its text lies: a line of JSON, or a tar's member.
    is_json
        By record: whether that text is JSON.
    text_tokens
        By record: tokens of its text, whose parts between the marks are tokenized by themselves.
    first
        Images of record r are first[r] to first[r + 1] - 1.
    width, height
        By image, in pixels as it is to be seen.
    image_begin, image_size
        By image: where it lies in its record's tar; JSON lines name files instead.
    """

    source: Integers
    begin: Integers
    size: Integers
    is_json: Integers
    text_tokens: Integers
    first: Integers
    width: Integers
    height: Integers
    image_begin: Integers
    image_size: Integers

    def __len__(self) -> int:
        return len(self.begin)


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the files of a set: a file of JSON lines, a tar, or all tar files of a folder by name.

    Raises
    ------
    RecordError
        The folder holds no tar file.
    """
    if not path.is_dir():
        return (path,)
    found = tuple(sorted(path.glob("*.tar")))
    if not found:
        raise RecordError(f"{path} is a folder without .tar files; name the .jsonl file in it, if there is one")
    return found


def read_index(path: Path, tokenizer: Tokenizer = BYTES) -> Index:
    """Return the index of a set of records, from the cache where that fits.

    Raises
    ------
    OSError
        A file cannot be read.
    RecordError
        A record is wrong, or there is none.
    """
    files = files_of(path)
    return _read_index(files, tuple((file.stat().st_size, file.stat().st_mtime_ns) for file in files), tokenizer)


@lru_cache(maxsize=4)
def _read_index(files: tuple[Path, ...], state: tuple[tuple[int, int], ...], tokenizer: Tokenizer) -> Index:
    named = json.dumps([FORMAT, [str(file.absolute()) for file in files], state, tokenizer.digest]).encode()
    kept = _cache_folder() / f"{blake2b(named, digest_size=16).hexdigest()}.npz"
    if (index := _load(kept)) is None:
        index = _scan(files, tokenizer)
        _save(index, kept)
    return index


def _scan(files: tuple[Path, ...], tokenizer: Tokenizer) -> Index:
    rows: list[tuple[int, ...]] = []
    images: list[tuple[int, ...]] = []
    first = [0]
    for number, file in enumerate(files):
        for record in records_of(file):
            text_tokens = sum(len(tokenizer.encode(part)) for part in record.text.split(MARK))
            rows.append((number, *record.where, int(record.is_json), text_tokens))
            images += [(*size, *where) for size, where in zip(record.sizes, record.images, strict=True)]
            first.append(len(images))
    if not rows:
        raise RecordError(f"{', '.join(map(str, files))}: no record with a text in it")
    source, begin, size, is_json, text_tokens = np.array(rows, dtype=np.int64).T
    width, height, image_begin, image_size = np.array(images, dtype=np.int64).reshape(-1, 4).T
    return Index(
        source=source,
        begin=begin,
        size=size,
        is_json=is_json,
        text_tokens=text_tokens,
        first=np.array(first, dtype=np.int64),
        width=width,
        height=height,
        image_begin=image_begin,
        image_size=image_size,
    )


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcpipe" / "images"


def _load(kept: Path) -> Index | None:
    try:
        with np.load(kept, allow_pickle=False) as stored:
            return Index(**{field.name: stored[field.name] for field in fields(Index)})
    except (OSError, EOFError, KeyError, ValueError, BadZipFile):  # none yet, or no longer what it was
        return None


def _save(index: Index, kept: Path) -> None:
    """Keep the index for the next start, if the folder can be written."""
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            np.savez_compressed(file, **{field.name: getattr(index, field.name) for field in fields(index)})
        partial.replace(kept)
    except OSError:
        with suppress(OSError):
            partial.unlink()
