"""The safetensors files of a Hugging Face folder: where each tensor lies, and whether they are those of a model.

Only headers are read. Pickles are never opened.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from hpcpipe.job.huggingface.config import FolderError
from hpcpipe.job.huggingface.names import HEAD, LEFT_OVER, prefix_of, stored_tensors
from hpcpipe.job.models import LanguageModel
from hpcpipe.job.words import listing

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""What parameters can be stored as: safetensors' names and torch's."""
_MOST_NAMES = 8


class Entry(NamedTuple):
    """Where a tensor lies and what it is."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a model in a folder, by the names of `stored_tensors`.

    `doubled` is the head's own copy of a tied embedding, if the folder has one.
    """

    entries: Mapping[str, Entry]
    doubled: Entry | None


def open_weights(folder: Path, model: LanguageModel) -> Weights:
    """Find the tensors of a model in a folder.

    Raises
    ------
    FolderError
        Files are missing or torn, or tensors are missing, not of the model, or of another shape or type; all of them.
    """
    there = _headers(folder, _files(folder))
    prefix = prefix_of(model)
    bare = not any(name.startswith(prefix) for name in there)  # saved without the head, so without the prefix
    entries, missing, misshapen, strange = {}, [], [], []
    for stored in stored_tensors(model):
        name = stored.tensor.removeprefix(prefix) if bare else stored.tensor
        entry = there.get(name)
        if entry is None:
            missing += [] if stored.copy else [name]
            continue
        entries[stored.tensor] = entry
        if entry.shape != stored.shape and not stored.copy:
            misshapen.append(f"{name} is {list(entry.shape)}, not {list(stored.shape)}")
        if entry.dtype not in FLOATS:
            strange.append(f"{name} is {entry.dtype}")
    doubled = there.get(HEAD) if HEAD not in entries else None
    known = {entry.name for entry in entries.values()} | {HEAD}
    unexpected = [name for name in there if name not in known and not re.fullmatch(LEFT_OVER, name)]
    faults = [
        _count(missing, "{} missing: {}"),
        _count(unexpected, "{} not of this model: {}"),
        _count(misshapen, "{} of another shape: {}"),
        _count(strange, "{} not of a floating type: {}"),
    ]
    if any(faults):
        raise FolderError(*(f"{folder}: {fault}" for fault in faults if fault))
    return Weights(entries, doubled)


def _count(names: list[str], sentence: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    many = "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
    return sentence.format(many, ", ".join(names[:_MOST_NAMES]) + more)


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Return the files with the tensors that the index wants from each; None: whatever there is."""
    index = folder / INDEX
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in listed.items()]
    except FileNotFoundError:
        pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
        raise FolderError(
            f"{folder} has neither {SINGLE} nor {INDEX}"
            + (f", only {listing(pickles)}; pickles are never loaded, save it as safetensors first" if pickles else "")
        ) from None
    except OSError as error:
        raise FolderError(f"{index} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FolderError(f"{index} is no index: it needs a weight_map from tensors to files") from None
    outside = sorted({file for _, file in pairs if Path(file).name != file or file in ("", ".", "..")})
    if outside:
        raise FolderError(f"{index} names files outside the folder: {', '.join(outside)}")
    files: dict[Path, list[str] | None] = {folder / file: [] for _, file in pairs}
    for name, file in pairs:
        wanted = files[folder / file]
        assert wanted is not None
        wanted.append(name)
    return files


def _headers(folder: Path, files: Mapping[Path, Iterable[str] | None]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    faults = []
    for path, wanted in files.items():
        try:
            with safe_open(path, framework="np") as file:
                there = set(file.keys())
                for name in sorted(there if wanted is None else there & set(wanted)):
                    piece = file.get_slice(name)
                    found[name] = Entry(path, name, tuple(piece.get_shape()), str(piece.get_dtype()))
        except FileNotFoundError:
            faults.append(f"{folder}: {path.name} is missing, which {INDEX} names")
        except (OSError, SafetensorError) as error:
            faults.append(f"{path} cannot be read as safetensors: {error}")
        else:
            absent = sorted(set(wanted or ()) - there)
            faults += [f"{path} lacks {name}, which {INDEX} names" for name in absent]
    if faults:
        raise FolderError(*faults)
    return found
