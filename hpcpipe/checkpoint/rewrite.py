"""Writes a checkpoint anew: its tensors whole and dealt out for another mesh, or as a folder that other tools load.

Both hold one file's tensors in memory, never the whole model, and need neither torch nor MPI.
"""

import json
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from hpcpipe.checkpoint.folder import commit, make_partial, partial_folder
from hpcpipe.checkpoint.manifest import Manifest
from hpcpipe.checkpoint.part import MODEL, Held, merge_parts, write_part
from hpcpipe.checkpoint.pieces import Extent
from hpcpipe.checkpoint.reader import Reader
from hpcpipe.checkpoint.tensor_files import Note, RawTensor, TensorFile, element_type, quiet, write_tensors
from hpcpipe.job.huggingface.folder import INDEX
from hpcpipe.plan import balanced_split


def reshape(
    reader: Reader,
    folder: Path,
    *,
    pipeline: int,
    data: int,
    tensor: int,
    note: Note = quiet,
) -> Path:
    """Write the same state into `folder` as a mesh of these sizes would, but with every tensor whole; return its path.

    The layers are cut into `pipeline` runs of about equal bytes, the tensors of each dealt out to data x tensor files.

    Raises
    ------
    CheckpointError, OSError
        It cannot be read or written.
    """
    old = reader.manifest
    parts = _deal_out(old, pipeline, data * tensor)
    try:
        partial = make_partial(folder, old.step)
        for number, names in enumerate(parts):
            write_part(partial, list(_pieces(reader, names)), number=number, count=len(parts), note=note)
        manifest = replace(old, mesh=(pipeline, data, tensor, 1), files={}, parameters={}, state={})
        return commit(folder, old.step, merge_parts(folder, old.step, manifest, len(parts)))
    finally:
        shutil.rmtree(partial_folder(folder, old.step), ignore_errors=True)


def export(
    reader: Reader,
    folder: Path,
    *,
    shard_bytes: int,
    note: Note = quiet,
) -> list[Path]:
    """Write the model under its own names into files laid out as Hugging Face's, each of at most `shard_bytes`.

    They are `model.safetensors`, or shards with an index, and `config.json`, which is the job's table [model]. `folder`
    is made if it is not there.

    Raises
    ------
    CheckpointError, OSError
        It cannot be read or written.
    """
    manifest = reader.manifest
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[list[str]] = [[]]
    size = 0
    for name in manifest.parameters:
        num_bytes = _num_bytes(manifest, MODEL, name)
        if shards[-1] and size + num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += num_bytes
    written = []
    for number, names in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / file, {name: _read(reader, MODEL, name) for name in names}, note=note)
        written.append(folder / file)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(_num_bytes(manifest, MODEL, name) for name in manifest.parameters)},
            "weight_map": {name: path.name for names, path in zip(shards, written, strict=True) for name in names},
        }
        written.append(folder / INDEX)
        written[-1].write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    content = tomllib.loads(manifest.job_toml)["model"]
    written.append(folder / "config.json")
    written[-1].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return written


def missing_elements(folder: Path, manifest: Manifest) -> list[str]:
    """Return which tensors the files do not hold as the manifest says, though each file is as it was written."""
    headers: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    faults = []
    for kind, tensors in ((MODEL, manifest.parameters), *manifest.state.items()):
        for name, entry in tensors.items():
            elements = 0
            for piece in entry.pieces:
                if piece.file not in headers:
                    with TensorFile(folder / piece.file) as file:
                        headers[piece.file] = file.shapes()
                dtype, shape = headers[piece.file].get(piece.key, ("", ()))
                elements += prod(shape) if dtype == entry.dtype else 0
            if elements != prod(entry.shape):
                faults.append(f"{kind} {name}: {elements} of {prod(entry.shape)} elements")
    return faults


def _deal_out(manifest: Manifest, pipeline: int, width: int) -> list[list[str]]:
    """Return the names of the tensors of every part."""
    of_layer: dict[str, list[str]] = {layer: [] for layer in manifest.layers}
    longest_first = sorted(manifest.layers, key=len, reverse=True)
    for name in manifest.parameters:
        of_layer[next(layer for layer in longest_first if name.startswith(f"{layer}."))].append(name)
    layers = [layer for layer, names in of_layer.items() if names]
    sizes = {layer: sum(_num_bytes(manifest, MODEL, name) for name in of_layer[layer]) for layer in layers}
    counts = balanced_split([float(sizes[layer]) for layer in layers], min(pipeline, len(layers)))
    parts: list[list[str]] = []
    begin = 0
    for count in counts:
        dealt: list[list[str]] = [[] for _ in range(width)]
        loads = [0] * width
        for layer in layers[begin : begin + count]:
            for name in of_layer[layer]:
                least = loads.index(min(loads))
                dealt[least].append(name)
                loads[least] += _num_bytes(manifest, MODEL, name)
        parts += dealt
        begin += count
    return parts


def _pieces(reader: Reader, names: Sequence[str]) -> Iterator[Held]:
    for name in names:
        for kind in (MODEL, *(kind for kind, tensors in reader.manifest.state.items() if name in tensors)):
            tensor = _read(reader, kind, name)
            yield Held(kind, name, tensor.shape, Extent(0, prod(tensor.shape)), tensor)


def _read(reader: Reader, kind: str, name: str) -> RawTensor:
    manifest = reader.manifest
    entry = manifest.parameters[name] if kind == MODEL else manifest.state[kind][name]
    return RawTensor(entry.dtype, entry.shape, reader.elements(name, entry))


def _num_bytes(manifest: Manifest, kind: str, name: str) -> int:
    entry = manifest.parameters[name] if kind == MODEL else manifest.state[kind][name]
    return prod(entry.shape) * element_type(entry.dtype).itemsize
