"""The records of a set by number: what they cost from the index alone, their sequences and pixels when asked.

What a step needs to be planned never opens an image; nothing here knows of steps or batches.
"""

import os
import tarfile
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcpipe.data.image_file import Geometry, ImageError, patches_of
from hpcpipe.data.image_index import Integers, files_of, read_index
from hpcpipe.data.image_scan import MARK, RecordError, Where, parse_line, text_of
from hpcpipe.data.tokenizer import BYTES, Tokenizer

IMAGE = -1
"""Stands in a sequence for each token of an image."""


class Loads(NamedTuple):
    """By record: patches, their squares summed over its images, image tokens, all tokens, their square, targets."""

    patches: Integers
    patch_pairs: Integers
    image_tokens: Integers
    tokens: Integers
    token_pairs: Integers
    targets: Integers


class ImageRecords:
    """The records of a file or folder, as a model with this geometry and context sees them.

    A record is a begin, its images and text, and an end; the loss counts the tokens of the text and the end. Begin and
    end are the two ids that follow those of the tokenizer.

    Raises
    ------
    OSError
        A file cannot be read.
    RecordError
        A record is wrong, an image larger than allowed, or a record longer than the context.
    """

    def __init__(self, path: Path, geometry: Geometry, *, context: int, tokenizer: Tokenizer = BYTES) -> None:
        self._files = files_of(path)
        self._tokenizer = tokenizer
        self._index = index = read_index(path, tokenizer)
        self._geometry = geometry
        self._opened: dict[int, int] = {}
        weakref.finalize(self, _close, self._opened)
        self._opening = threading.Lock()
        self._check_sides()
        self._rows, self._columns = geometry.grids(index.width, index.height)
        patches = self._rows * self._columns
        image_tokens = self._summed(patches // geometry.merge**2)
        targets = index.text_tokens + 1
        tokens = targets + 1 + image_tokens
        self.loads = Loads(self._summed(patches), self._summed(patches**2), image_tokens, tokens, tokens**2, targets)
        self._check_lengths(context)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def values_of_a_patch(self) -> int:
        """How many values a patch has."""
        return self._geometry.channels * self._geometry.patch**2

    def grids(self, record: int) -> list[tuple[int, int]]:
        """Return rows and columns of a record's images in patches."""
        return [(int(self._rows[image]), int(self._columns[image])) for image in self._images(record)]

    def sequence(self, record: int) -> Integers:
        """Return a record's tokens, IMAGE where an image's token stands.

        Raises
        ------
        OSError, RecordError
            The file cannot be read, or has changed.
        """
        text, _ = self._text(record)
        parts = [self._tokenizer.encode(part) for part in text.split(MARK)]
        images = [[IMAGE] * (rows * columns // self._geometry.merge**2) for rows, columns in self.grids(record)]
        if len(parts) == 1:
            parts = [[]] * len(images) + parts
        begin, end = self._tokenizer.size, self._tokenizer.size + 1
        sequence = [begin, *parts[0]]
        for image, part in zip(images, parts[1:], strict=True):
            sequence += image + part
        sequence.append(end)
        if len(sequence) != self.loads.tokens[record]:
            raise RecordError(f"{self.name(record)}: it has changed since it was indexed")
        return np.array(sequence, dtype=np.int64)

    def pixels(self, record: int) -> list[NDArray[np.uint8]]:
        """Return the patches of a record's images, (patches, channels · patch²) each.

        Raises
        ------
        OSError, RecordError
            A file cannot be read, or an image not be decoded; the record and the image are named.
        """
        index, images = self._index, self._images(record)
        _, names = self._text(record) if len(images) and not index.image_size[images.start] else ("", [])
        found = []
        for number, image in enumerate(images):
            if names:
                file = self._files[index.source[record]].parent / names[number]
                content, said = self._read_file(record, file), str(file)
            else:
                where = Where(int(index.image_begin[image]), int(index.image_size[image]))
                content, said = self._read(record, where), f"image {number}"
            size = int(index.width[image]), int(index.height[image])
            grid = int(self._rows[image]), int(self._columns[image])
            try:
                found.append(patches_of(content, self._geometry, size=size, grid=grid))
            except ImageError as error:
                raise RecordError(f"{self.name(record)}: {said}: {error}") from None
        return found

    def name(self, record: int) -> str:
        """Return where a record stands, for people."""
        file, begin = self._files[self._index.source[record]], int(self._index.begin[record])
        if file.suffix != ".tar":
            with file.open("rb") as lines:
                before = lines.read(begin).count(b"\n")
            return f"{file}, line {before + 1}"
        with tarfile.open(file, "r:") as tar:
            found = (member.name for member in tar if member.offset_data == begin)
            return f"{file}, record {next(found, '?').partition('.')[0]}"

    def _images(self, record: int) -> range:
        return range(int(self._index.first[record]), int(self._index.first[record + 1]))

    def _text(self, record: int) -> tuple[str, list[str]]:
        """Return a record's text, and the names of its images where they are files of their own."""
        index = self._index
        content = self._read(record, Where(int(index.begin[record]), int(index.size[record])))
        try:
            if self._files[index.source[record]].suffix != ".tar":
                return parse_line(content)
            return text_of(content, is_json=bool(index.is_json[record])), []
        except ValueError as error:
            raise RecordError(f"{self.name(record)}: {error}") from None

    def _read_file(self, record: int, file: Path) -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            raise RecordError(f"{self.name(record)}: {file}: {error.strerror or error}") from None

    def _read(self, record: int, where: Where) -> bytes:
        number = int(self._index.source[record])
        with self._opening:
            if number not in self._opened:
                self._opened[number] = os.open(self._files[number], os.O_RDONLY | os.O_CLOEXEC)
        content = os.pread(self._opened[number], where.size, where.begin)
        if len(content) != where.size:
            raise RecordError(f"{self._files[number]} has become shorter since it was indexed")
        return content

    def _summed(self, of_images: Integers) -> Integers:
        """Return the sums over each record's images."""
        sums = np.concatenate([[0], np.cumsum(of_images)])
        return np.diff(sums[self._index.first])

    def _record_of(self, image: int) -> int:
        return int(np.searchsorted(self._index.first, image, side="right")) - 1

    def _check_sides(self) -> None:
        index, most = self._index, self._geometry.max_side
        longest = np.maximum(index.width, index.height)
        if self._geometry.shrink or not len(longest) or longest.max() <= most:
            return
        image = int(np.argmax(longest > most))
        record, others = self._record_of(image), int((longest > most).sum()) - 1
        more = f" (and so are {others} more images)" if others else ""
        raise RecordError(
            f"{self.name(record)}: image {image - int(index.first[record])} of {index.width[image]} x "
            f"{index.height[image]} pixels is larger than max_side = {most}{more}; set [data] max_side to at least "
            f'{longest.max()}, or larger = "shrink"'
        )

    def _check_lengths(self, context: int) -> None:
        tokens = self.loads.tokens
        if tokens.max() <= context:
            return
        record = int(np.argmax(tokens > context))
        raise RecordError(
            f"{self.name(record)}: {tokens[record]} tokens ({self.loads.image_tokens[record]} of images) are more than "
            f"context = {context}; set [model] context to at least {tokens.max()}, a larger merge, or a smaller "
            'max_side with larger = "shrink"'
        )


def _close(opened: dict[int, int]) -> None:
    for descriptor in opened.values():
        os.close(descriptor)
