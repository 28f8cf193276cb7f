"""Read the records of a file one after the other, without decoding any image: JSON lines, and webdataset's tar files.

It says where each lies and how large its images are; what is kept of that is image_index.py's matter.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hpcpipe.data.image_file import ImageError, size_of

MARK = "<image>"
"""Where an image stands in a text; without marks all images stand before it."""

TEXTS = ("txt", "json")
IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")


class RecordError(ValueError):
    """A record cannot be used; it says which one, and why."""


class Where(NamedTuple):
    """Bytes of a file."""

    begin: int
    size: int


class Record(NamedTuple):
    """A text, where it lies, and of its images the sizes (width, height) and where they lie in a tar."""

    text: str
    where: Where
    is_json: bool
    sizes: list[tuple[int, int]]
    images: list[Where]


def records_of(file: Path) -> Iterator[Record]:
    """Yield the records of a file.

    Raises
    ------
    OSError
        It cannot be read.
    RecordError
        A record is wrong; its line or its name is said.
    """
    if file.suffix == ".tar":
        return _tar_records(file)
    if file.suffix in (".jsonl", ".ndjson"):
        return _line_records(file)
    raise RecordError(f"{file}: records of image and text are read from .jsonl files and from .tar files")


def _line_records(file: Path) -> Iterator[Record]:
    begin = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where, begin = Where(begin, len(line)), begin + len(line)
            if not line.strip():
                continue
            said = f"{file}, line {number}"
            try:
                text, names = parse_line(line)
            except ValueError as error:
                raise RecordError(f"{said}: {error}") from None
            sizes = []
            for name in names:
                try:
                    with (file.parent / name).open("rb") as image:
                        sizes.append(size_of(image))
                except OSError as error:
                    raise RecordError(f"{said}: {file.parent / name}: {error.strerror or error}") from None
                except ImageError as error:
                    raise RecordError(f"{said}: {file.parent / name}: {error}") from None
            yield _checked(Record(text, where, True, sizes, [Where(0, 0)] * len(names)), said)


def _tar_records(file: Path) -> Iterator[Record]:
    """Yield the records of a tar: consecutive files whose names are the same up to the first dot are one."""
    try:
        tar = tarfile.open(file, "r:")  # noqa: SIM115 - closed below
    except tarfile.ReadError as error:
        raise RecordError(f"{file}: no uncompressed tar file ({error}); unpack a .tar.gz with gunzip first") from None
    with tar:
        key, members, seen = "", list[tarfile.TarInfo](), set[str]()
        for member in _members(tar, file):
            folder, _, name = member.name.rpartition("/")
            mine = f"{folder}/{name.partition('.')[0]}"
            if mine != key and members:
                yield _tar_record(tar, file, key, members)
                seen.add(key)
                members = []
            if mine in seen:
                raise RecordError(f"{file}: {member.name} is apart from the other files of its record")
            key = mine
            members.append(member)
        if members:
            yield _tar_record(tar, file, key, members)


def _members(tar: tarfile.TarFile, file: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the ordinary files of a tar that holds all of them."""
    size = file.stat().st_size
    try:
        for member in tar:
            if member.isfile():
                if member.offset_data + member.size > size:
                    raise RecordError(f"{file} is cut off: {member.name} ends behind its {size} bytes")
                yield member
    except tarfile.TarError as error:
        raise RecordError(f"{file} is damaged: {error}") from None


def _tar_record(tar: tarfile.TarFile, file: Path, key: str, members: list[tarfile.TarInfo]) -> Record:
    said = f"{file}, record {key.lstrip('/')}"
    by_ending: dict[str, list[tarfile.TarInfo]] = {}
    for member in members:
        by_ending.setdefault(member.name.rpartition(".")[2].lower(), []).append(member)
    texts = [each for ending in TEXTS for each in by_ending.get(ending, ())]
    if not texts:
        raise RecordError(f"{said}: no text; a .txt or .json file of the same name is to hold it")
    is_json = texts[0].name.lower().endswith(".json")
    content = tar.extractfile(texts[0])
    assert content is not None
    try:
        text = text_of(content.read(), is_json=is_json)
    except ValueError as error:
        raise RecordError(f"{said}: {texts[0].name}: {error}") from None
    images = [member for member in members if member.name.rpartition(".")[2].lower() in IMAGES]
    sizes = []
    for member in images:
        picture = tar.extractfile(member)
        assert picture is not None
        try:
            sizes.append(size_of(picture))
        except ImageError as error:
            raise RecordError(f"{said}: {member.name}: {error}") from None
    where = [Where(member.offset_data, member.size) for member in images]
    return _checked(Record(text, Where(texts[0].offset_data, texts[0].size), is_json, sizes, where), said)


def parse_line(line: bytes) -> tuple[str, list[str]]:
    """Return text and image files of a line of JSON.

    Raises
    ------
    ValueError
        It is no object with a text, or names images in another way.
    """
    example = 'write {"image": "cat.png", "text": "a cat"}, with a list for several images'
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error}); {example}") from None
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError(f'it has no "text"; {example}')
    images = value.get("image")
    images = [] if images is None else [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise ValueError(f'"image" is neither a path nor a list of paths; {example}')
    return value["text"], images


def text_of(content: bytes, *, is_json: bool) -> str:
    """Return the text that a tar's member holds.

    Raises
    ------
    ValueError
        It holds none.
    """
    try:
        text: Any = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start})") from None
    if is_json:
        value = json.loads(text)
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise ValueError('it has no "text"')
    return str(text)


def _checked(record: Record, said: str) -> Record:
    try:
        record.text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(f"{said}: its text holds half a character ({error.reason})") from None
    marks = record.text.count(MARK)
    if marks not in (0, len(record.sizes)):
        raise RecordError(
            f"{said}: its text has {marks} marks {MARK} for {len(record.sizes)} images; write one for each, or none"
        )
    return record
