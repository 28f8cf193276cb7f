"""Write a model as a Hugging Face folder, which transformers and others load: config.json and safetensors files.

Parameters come from whoever holds them, one shard's at a time; nothing here knows how they were trained or stored.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hpcpipe.job.huggingface import Stored, config_of, open_weights, read_config, settings_of, stored_tensors
from hpcpipe.job.huggingface.config import CONFIG
from hpcpipe.job.huggingface.folder import FLOATS, INDEX, SINGLE
from hpcpipe.job.models import LanguageModel

SHARD_BYTES = 5 * 10**9
_BESIDE = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""What a folder holds besides its model: carried over as it is."""


def export_hf(
    folder: Path,
    model: LanguageModel,
    parameters: Mapping[str, torch.Tensor],
    *,
    like: Path | None = None,
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder, whole or not at all.

    Parameters
    ----------
    parameters
        By layer and name, such as `block.3.norm_1.weight`; a mapping may read each when it is asked for. Of a tied head
        only the embedding is asked for.
    like
        The folder that the model began with: its types, the rest of its config.json and its tokenizer are kept, so that
        what was loaded is written with the same bytes.
    dtype
        The type of all tensors, where it is not to be that of `like` or of the parameters.

    Raises
    ------
    FileExistsError
        There is something of that name.
    KeyError, ValueError
        A parameter is missing or has another shape.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} is there already; name a folder that is not")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write(partial, model, parameters, like, dtype, shard_bytes)
        for path in (*partial.iterdir(), partial):
            _sync(path)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(folder.parent)


def _write(
    folder: Path,
    model: LanguageModel,
    parameters: Mapping[str, torch.Tensor],
    like: Path | None,
    dtype: torch.dtype | None,
    shard_bytes: int,
) -> None:
    config = config_of(model) if like is None else _config_like(like, model)
    types = {} if like is None else {name: entry.dtype for name, entry in open_weights(like, model).entries.items()}
    shards = _Shards(folder, shard_bytes)
    for stored in stored_tensors(model):
        if not stored.copy:
            kind = dtype or (getattr(torch, FLOATS[types[stored.tensor]]) if like is not None else None)
            shards.add(stored.tensor, _tensor(stored, parameters[stored.key], kind))
    config["torch_dtype"] = shards.finish()
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in _BESIDE:
        if like is not None and (like / name).is_file():
            shutil.copyfile(like / name, folder / name)


def _tensor(stored: Stored, parameter: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a parameter as it is stored."""
    value = parameter.detach().cpu()
    tensor = value.t() if stored.transposed else value
    if tuple(tensor.shape) != stored.shape:
        raise ValueError(f"{stored.key} would be {stored.tensor} of {list(tensor.shape)}, not {list(stored.shape)}")
    return tensor.to(dtype or value.dtype).contiguous()


def _config_like(folder: Path, model: LanguageModel) -> dict[str, Any]:
    """Return the config.json of a folder, which must hold a model of the same settings."""
    config = read_config(folder)
    theirs = type(model).model_validate({**model.model_dump(), **settings_of(config)})
    other = [key for key in type(model).model_fields if getattr(theirs, key) != getattr(model, key)]
    if other:
        raise ValueError(f"{folder} holds a model with other {', '.join(other)}")
    config.pop("dtype", None)  # what transformers 5 calls torch_dtype, which it reads too
    return config


class _Shards:
    """Gathers tensors into files; their names hold how many there are, so they get them at the end."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder, self._most = folder, most_bytes
        self._open: dict[str, torch.Tensor] = {}
        self._written: list[list[str]] = []
        self._bytes = self._total = 0
        self._dtypes: dict[torch.dtype, int] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor; a file that would grow too large is written without it."""
        if self._open and self._bytes + tensor.nbytes > self._most:
            self._write()
        self._open[name] = tensor.clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor
        self._bytes += tensor.nbytes
        self._total += tensor.nbytes
        self._dtypes[tensor.dtype] = self._dtypes.get(tensor.dtype, 0) + tensor.nbytes

    def finish(self) -> str:
        """Write what is left, name the files, and return the name of the type that most bytes have."""
        self._write()
        count = len(self._written)
        names = [SINGLE] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
        for number, name in enumerate(names):
            self._path(number).rename(self._folder / name)
        if count > 1:
            where = {tensor: name for name, tensors in zip(names, self._written, strict=True) for tensor in tensors}
            index = {"metadata": {"total_size": self._total}, "weight_map": where}
            (self._folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        return str(max(self._dtypes, key=lambda dtype: self._dtypes[dtype])).removeprefix("torch.")

    def _write(self) -> None:
        save_file(self._open, self._path(len(self._written)), metadata={"format": "pt"})
        self._written.append(list(self._open))
        self._open, self._bytes = {}, 0

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.partial"


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
