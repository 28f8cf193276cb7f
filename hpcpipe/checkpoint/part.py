"""One rank's part of a checkpoint: its files and what is in them, and how the parts of all ranks become one manifest.

A part says what it holds in a small JSON file beside its tensors, since only files survive what ranks do not.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from hpcpipe.checkpoint.folder import partial_folder, sync_folder
from hpcpipe.checkpoint.manifest import (
    FileEntry,
    Manifest,
    TensorEntry,
    merge_tensors,
    tensor_from_json,
    tensor_json,
)
from hpcpipe.checkpoint.pieces import Extent, Piece
from hpcpipe.checkpoint.tensor_files import Note, RawTensor, quiet, write_tensors

MODEL = "model"


class Held(NamedTuple):
    """A piece that a rank saves: which tensor, of what whole shape, which of its elements, and these.

    `kind` is MODEL or the kind of optimizer state.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    extent: Extent
    tensor: RawTensor


def write_part(folder: Path, pieces: Sequence[Held], *, number: int, count: int, note: Note = quiet) -> None:
    """Write part `number` (from 0) of `count` durably into the folder of a partial checkpoint.

    Raises
    ------
    OSError
        It cannot be written, or cannot be read back as it was written.
    """
    files: dict[str, FileEntry] = {}
    found: dict[str, dict[str, TensorEntry]] = {}
    for what in ("model", "optimizer"):
        mine = [piece for piece in pieces if (piece.kind == MODEL) == (what == "model")]
        if not mine:
            continue
        name = f"{what}-{number + 1:05d}-of-{count:05d}.safetensors"
        keyed = {_key(piece): piece for piece in mine}
        files[name] = write_tensors(folder / name, {key: piece.tensor for key, piece in keyed.items()}, note=note)
        for key, piece in keyed.items():
            entry = TensorEntry(piece.tensor.dtype, piece.shape, (Piece(name, key, piece.extent),))
            found.setdefault(piece.kind, {})[piece.name] = entry
    content = {
        "files": {name: [entry.num_bytes, entry.xxh3_128] for name, entry in files.items()},
        "tensors": {
            kind: {name: tensor_json(entry) for name, entry in tensors.items()} for kind, tensors in found.items()
        },
    }
    with _note_of(folder, number).open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def merge_parts(folder: Path, step: int, manifest: Manifest, count: int) -> Manifest:
    """Return the manifest with what all `count` parts of a partial checkpoint hold.

    Raises
    ------
    OSError, ValueError
        A part cannot be read, or does not go with the others.
    """
    partial = partial_folder(folder, step)
    files: dict[str, FileEntry] = {}
    found: dict[str, dict[str, TensorEntry]] = {}
    for number in range(count):
        content = json.loads(_note_of(partial, number).read_text(encoding="utf-8"))
        files |= {name: FileEntry(*entry) for name, entry in content["files"].items()}
        for kind, tensors in content["tensors"].items():
            more = {name: tensor_from_json(entry) for name, entry in tensors.items()}
            found[kind] = merge_tensors(found.get(kind, {}), more)
    for name, entry in files.items():
        size = (partial / name).stat().st_size
        if size != entry.num_bytes:
            raise ValueError(f"{partial / name} has {size} bytes instead of {entry.num_bytes}")
    parameters = found.pop(MODEL, {})
    return replace(manifest, files=files, parameters=parameters, state=found)


def _key(piece: Held) -> str:
    return piece.name if piece.kind == MODEL else f"{piece.kind}/{piece.name}"


def _note_of(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"
