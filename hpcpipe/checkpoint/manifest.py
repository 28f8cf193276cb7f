"""The manifest of a checkpoint: what it holds, of which job and step, in which files; JSON that carries its own hash.

Reading one refuses what is damaged or newer than this code. It opens no other file and knows neither torch nor MPI.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from hpcpipe.checkpoint.pieces import Extent, Piece, Sliced

FORMAT = "hpcpipe-checkpoint"
SCHEMA_VERSION = "1.1.0"
NAME = "manifest.json"
_MAJOR = int(SCHEMA_VERSION.partition(".")[0])


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size and hash of a file."""

    num_bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A whole tensor: its type as safetensors calls it, its shape, and the pieces that it lies in."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes
    ----------
    step
        Optimizer steps that were done.
    job_toml, job_sha256
        The resolved job that was trained.
    mesh
        Sizes of pipeline, data and tensor parallelism, and the chunks of a rank; for people, since no piece depends on
        who wrote it.
    seed
        All random numbers are functions of it and of step, layer and micro-batch.
    samples
        Sequences that were trained on since the start: where the data goes on.
    tokenizer
        Hash of the file of the data's tokenizer, empty where there is none; None where nobody knows it.
    optimizer
        The kind of optimizer.
    restarts
        How often the training had been resumed before.
    numbers
        Whatever else must go on as it was, by name.
    layers
        Names of the layers in the chain's order; a parameter is named LAYER.PATH.
    ties
        Further names of parameters that have several, and the name that each is stored under.
    parameters, state
        The model's tensors by name, and the optimizer's by kind of state and name of the parameter.
    """

    step: int
    created_utc: str
    software: str
    job_name: str
    job_toml: str
    job_sha256: str
    mesh: tuple[int, int, int, int]
    seed: int
    samples: int
    optimizer: str
    restarts: int
    layers: tuple[str, ...]
    ties: Mapping[str, str]
    files: Mapping[str, FileEntry]
    parameters: Mapping[str, TensorEntry]
    state: Mapping[str, Mapping[str, TensorEntry]]
    numbers: Mapping[str, float] = field(default_factory=dict)
    tokenizer: str | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes of all files but the manifest."""
        return sum(file.num_bytes for file in self.files.values())

    def to_json(self) -> str:
        """Return the text of `manifest.json`."""
        pipeline, data, tensor, chunks = self.mesh
        content: dict[str, Any] = {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "step": self.step,
            "created_utc": self.created_utc,
            "software": self.software,
            "restarts": self.restarts,
            "job": {"name": self.job_name, "sha256": self.job_sha256, "toml": self.job_toml},
            "mesh": {"pipeline": pipeline, "data": data, "tensor": tensor, "chunks": chunks},
            "random": {"seed": self.seed, "rule": "functions of seed, step, layer and micro-batch"},
            "data": {"samples": self.samples, "tokenizer": self.tokenizer},
            "optimizer": {"name": self.optimizer},
            "numbers": dict(self.numbers),
            "layers": list(self.layers),
            "ties": dict(self.ties),
            "files": {name: {"bytes": file.num_bytes, "xxh3_128": file.xxh3_128} for name, file in self.files.items()},
            "parameters": {name: tensor_json(tensor) for name, tensor in self.parameters.items()},
            "state": {
                kind: {name: tensor_json(tensor) for name, tensor in tensors.items()}
                for kind, tensors in self.state.items()
            },
        }
        content["xxh3_128"] = _digest(content)
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or a newer hpcpipe has written it.
    """
    path = folder / NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is no checkpoint: it has no {NAME}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        content = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: it is no JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no manifest of a checkpoint of hpcpipe, or it is damaged")
    version = str(content.get("schema_version"))
    major = version.partition(".")[0]
    if not major.isdecimal():
        raise CheckpointError(f"{path} is damaged: its schema_version is {version!r}")
    if int(major) > _MAJOR:
        raise CheckpointError(
            f"{folder} has format {version}, newer than the {SCHEMA_VERSION} that this hpcpipe reads; update hpcpipe"
        )
    if content.pop("xxh3_128", None) != _digest(content):
        raise CheckpointError(f"{path} is damaged: it does not have the hash that stands in it")
    try:
        return _from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__} {error}") from None


def tensor_json(tensor: TensorEntry) -> dict[str, Any]:
    """Return a tensor's entry as JSON can hold it."""
    pieces = []
    for piece in tensor.pieces:
        begin, end, sliced = piece.extent
        entry: dict[str, Any] = {"file": piece.file, "key": piece.key, "range": [begin, end]}
        pieces.append(entry if sliced is None else entry | {"slice": list(sliced)})
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "pieces": pieces}


def tensor_from_json(entry: Mapping[str, Any]) -> TensorEntry:
    """Return a tensor's entry from JSON."""
    pieces = []
    for each in entry["pieces"]:
        begin, end = each["range"]
        sliced = Sliced(*each["slice"]) if "slice" in each else None
        pieces.append(Piece(each["file"], each["key"], Extent(begin, end, sliced)))
    return TensorEntry(entry["dtype"], tuple(entry["shape"]), tuple(pieces))


def merge_tensors(tensors: Mapping[str, TensorEntry], more: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Return both, the pieces of a tensor that is in both put together.

    Raises
    ------
    ValueError
        They disagree about a tensor.
    """
    merged = dict(tensors)
    for name, tensor in more.items():
        there = merged.get(name)
        if there is None:
            merged[name] = tensor
            continue
        if (there.dtype, there.shape) != (tensor.dtype, tensor.shape):
            raise ValueError(
                f"{name} is {there.dtype} {list(there.shape)} on one rank, "
                f"{tensor.dtype} {list(tensor.shape)} on another"
            )
        merged[name] = TensorEntry(tensor.dtype, tensor.shape, (*there.pieces, *tensor.pieces))
    return merged


def _from_json(content: Mapping[str, Any]) -> Manifest:
    job, mesh = content["job"], content["mesh"]
    return Manifest(
        step=int(content["step"]),
        created_utc=content["created_utc"],
        software=content["software"],
        job_name=job["name"],
        job_toml=job["toml"],
        job_sha256=job["sha256"],
        mesh=(mesh["pipeline"], mesh["data"], mesh["tensor"], mesh["chunks"]),
        seed=content["random"]["seed"],
        samples=content["data"]["samples"],
        optimizer=content["optimizer"]["name"],
        restarts=content["restarts"],
        layers=tuple(content["layers"]),
        ties=content["ties"],
        files={name: FileEntry(file["bytes"], file["xxh3_128"]) for name, file in content["files"].items()},
        parameters={name: tensor_from_json(entry) for name, entry in content["parameters"].items()},
        state={
            kind: {name: tensor_from_json(entry) for name, entry in tensors.items()}
            for kind, tensors in content["state"].items()
        },
        numbers=content["numbers"],
        tokenizer=content["data"].get("tokenizer"),
    )


def _digest(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
