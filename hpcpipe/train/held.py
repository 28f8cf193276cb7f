"""What a rank holds of a training, by the names of layers: what it saves of it, and how it takes it back.

A parameter that replicas or slices share is saved by one of them, dealt out by size; optimizer state by the rank whose
shard it is. A parameter of which a rank has only a slice says so by its attribute `sliced`: (dim, part, parts), or
with the number of equal blocks of that dimension as fourth entry (checkpoint/pieces.py).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from hpcpipe.checkpoint import (
    DTYPES,
    MODEL,
    CheckpointError,
    Extent,
    Held,
    Manifest,
    RawTensor,
    Reader,
    Sliced,
    TensorEntry,
)
from hpcpipe.checkpoint import whole_shape as whole
from hpcpipe.models import Layer, outline, ties_of
from hpcpipe.runtime import Place
from hpcpipe.train.bucket import MASTER
from hpcpipe.train.work import Buckets

if TYPE_CHECKING:
    from hpcpipe.train.bucket import Bucket
    from hpcpipe.train.buckets import FusionBuckets
    from hpcpipe.train.layout import Layout

_CODES = {getattr(torch, name): code for code, name in DTYPES.items()}


class Named(NamedTuple):
    """A tensor of this rank's modules under the name that it is stored by.

    `saved_here` says whether its first use in the chain lies on this stage. `trained` is False for buffers and frozen
    parameters.
    """

    name: str
    tensor: torch.Tensor
    trained: bool
    buffer: bool
    saved_here: bool


class Holdings:
    """The tensors of one rank."""

    def __init__(self, layout: "Layout", modules: Sequence[torch.nn.Module], buckets: Buckets, place: Place) -> None:
        self._fused = cast("FusionBuckets", buckets)
        self._place = place
        self.layers = tuple(layer.name for layer in layout.layers)
        self.ties = {name: first for name, (_, first) in tied_names(layout.layers).items()}
        indices = [index for piece in layout.pieces[place.stage] for index in piece]
        here = {layout.layers[index].name for index in indices}
        self.named = list(_named(layout.layers, indices, modules, here))
        self._names = {id(each.tensor): each.name for each in self.named}
        self._mine = self._dealt_out()
        self._copies: dict[tuple[str, str], torch.Tensor] = {}

    def snapshot(self) -> list[Held]:
        """Return copies of what this rank saves; the memory of the last ones is used again."""
        found = []
        for each in self._mine:
            sliced = sliced_of(each.tensor)
            shape = whole(each.tensor.shape, sliced)
            found.append(self._copy(MODEL, each.name, shape, Extent(0, each.tensor.numel(), sliced), each.tensor))
        for bucket in self._fused.members:
            for name, parameter, extent, (begin, end) in self._pieces(bucket):
                if extent.sliced is None and self._place.slice > 0:
                    continue  # all slices have the same
                shape = whole(parameter.shape, extent.sliced)
                for kind, value in bucket.states.items():
                    if value.ndim:
                        found.append(self._copy(kind, name, shape, extent, value[begin:end]))
                    elif extent.begin == 0 and (extent.sliced is None or extent.sliced.part == 0):
                        found.append(self._copy(kind, name, tuple(value.shape), Extent(0, value.numel()), value))
        held = {(each.kind, each.name) for each in found}
        self._copies = {key: copy for key, copy in self._copies.items() if key in held}  # shards may have moved on
        return found

    def restore(self, reader: Reader) -> None:
        """Take everything of a checkpoint that this rank needs.

        Raises
        ------
        CheckpointError
            Something is missing.
        """
        manifest = reader.manifest
        for each in self.named:  # each use of a tied parameter, whether they share memory or not
            entry = _entry_of(each, reader.folder, manifest)
            if entry.dtype != _CODES[each.tensor.dtype]:
                raise CheckpointError(f"{reader.folder} has {each.name} as {entry.dtype}, not {each.tensor.dtype}")
            extent = Extent(0, each.tensor.numel(), sliced_of(each.tensor))
            elements = reader.elements(each.name, entry, extent)
            with torch.no_grad():
                each.tensor.copy_(_as_tensor(elements, each.tensor.dtype).view(each.tensor.shape))
        for bucket in self._fused.members:
            self._restore_state(bucket, reader)

    def _restore_state(self, bucket: "Bucket", reader: Reader) -> None:
        parameter, length = bucket.shard_parameter, bucket.shard.stop - bucket.shard.start
        state: dict[str, torch.Tensor] = {}
        elementwise = _elementwise(reader.manifest)
        for name, _, extent, (begin, end) in self._pieces(bucket):
            for kind, tensors in reader.manifest.state.items():
                entry = tensors.get(name)
                if entry is None:
                    raise CheckpointError(f"{reader.folder} has no {kind} of {name}")
                dtype = getattr(torch, DTYPES[entry.dtype])
                if kind in elementwise:
                    values = state.setdefault(kind, torch.zeros(length, dtype=dtype, device=parameter.device))
                    values[begin:end] = _as_tensor(reader.elements(f"{kind} of {name}", entry, extent), dtype)
                    continue
                value = _as_tensor(reader.elements(f"{kind} of {name}", entry), dtype).view(entry.shape)
                if not torch.equal(state.setdefault(kind, value), value):
                    raise CheckpointError(f"{reader.folder}: the {kind} of {name} is not that of its neighbours")
        master = state.pop(MASTER, bucket.values[bucket.shard])
        with torch.no_grad():
            parameter.copy_(master)
        if state:
            bucket.optimizer.state[parameter] = state

    def _pieces(self, bucket: "Bucket") -> Iterator[tuple[str, torch.Tensor, Extent, tuple[int, int]]]:
        """Yield name, parameter, which of its elements lie in this rank's shard, and where in the shard."""
        low, high, at = bucket.shard.start, bucket.shard.stop, 0
        for parameter in bucket.parameters:
            begin, end = max(low, at), min(high, at + parameter.numel())
            if begin < end:
                extent = Extent(begin - at, end - at, sliced_of(parameter))
                yield self._names[id(parameter)], parameter, extent, (begin - low, end - low)
            at += parameter.numel()

    def _dealt_out(self) -> list[Named]:
        """Return the tensors of the model that this rank saves; each goes to whoever has least so far."""
        place = self._place
        loads = {(replica, index): 0 for replica in range(place.data) for index in range(place.tensor)}
        mine, seen = [], set()
        for each in self.named:
            if not each.saved_here or each.name in seen:
                continue
            seen.add(each.name)
            if sliced_of(each.tensor) is not None:
                owners = [(replica, place.slice) for replica in range(place.data)]
            else:
                owners = [(0, 0)] if each.buffer else list(loads)
            owner = min(owners, key=lambda who: (loads[who], who))
            for slice_index in range(place.tensor) if sliced_of(each.tensor) is not None else (owner[1],):
                loads[owner[0], slice_index] += each.tensor.nbytes
            if owner == (place.replica, place.slice):
                mine.append(each)
        return mine

    def _copy(self, kind: str, name: str, shape: tuple[int, ...], extent: Extent, value: torch.Tensor) -> Held:
        value = value.detach()
        copy = self._copies.get((kind, name))
        if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = self._copies[kind, name] = torch.empty(value.shape, dtype=value.dtype)
        copy.copy_(value)
        tensor = RawTensor(_CODES[value.dtype], tuple(value.shape), _raw(copy))
        return Held(kind, name, tuple(shape), extent, tensor)


def check_model(layout: "Layout", stage: int, folder: Path, manifest: Manifest) -> None:
    """Refuse a checkpoint of another model than the job's; builds a stage without giving it memory.

    Raises
    ------
    CheckpointError
        A tensor is missing, or of another shape.
    """
    indices = [index for piece in layout.pieces[stage] for index in piece]
    try:
        modules = [module for piece in layout.pieces[stage] for module in outline(layout.layers, piece)]
    except (NotImplementedError, RuntimeError):  # what torch raises where a layer cannot be built without memory: then
        return  # `restore` compares the same shapes, with the same words, when the stage is built
    for each in _named(layout.layers, indices, modules, set()):
        _entry_of(each, folder, manifest)


def _entry_of(each: Named, folder: Path, manifest: Manifest) -> TensorEntry:
    shape, entry = whole(each.tensor.shape, sliced_of(each.tensor)), manifest.parameters.get(each.name)
    if entry is None:
        raise CheckpointError(f"{folder} is of another model: it has no {each.name}")
    if entry.shape != shape:
        raise CheckpointError(
            f"{folder} is of another model: {each.name} is {list(entry.shape)} there, {list(shape)} in the job"
        )
    return entry


def tied_names(layers: Sequence[Layer]) -> dict[str, tuple[str, str]]:
    """Return the further names of tied parameters; for each the layer of the first use and the name there.

    They are stored by the latter.
    """
    ties = {}
    for (origin, path), *others in ties_of(layers).values():
        first = layers[origin].name
        for index, other in others:
            ties[f"{layers[index].name}.{other}"] = first, f"{first}.{path}"
    return ties


def sliced_of(tensor: torch.Tensor) -> Sliced | None:
    """Return which slice of a whole parameter this is, None if it is whole."""
    sliced: Any = getattr(tensor, "sliced", None)
    return None if sliced is None else Sliced(*sliced)


def _named(
    layers: Sequence[Layer], indices: Sequence[int], modules: Sequence[torch.nn.Module], here: set[str]
) -> Iterator[Named]:
    ties = tied_names(layers)
    for index, module in zip(indices, modules, strict=True):
        layer, first = layers[index].name, dict[int, str]()
        for path, tensor in module.state_dict(keep_vars=True).items():
            if not isinstance(tensor, torch.Tensor):
                continue
            own = first.setdefault(id(tensor), f"{layer}.{path}")  # the module may know it by two names
            origin, name = ties.get(own, (layer, own))
            parameter = isinstance(tensor, torch.nn.Parameter)
            yield Named(name, tensor, parameter and tensor.requires_grad, not parameter, origin in here)


def _elementwise(manifest: Manifest) -> set[str]:
    """Return the kinds of state with an entry for every element; the others have one value a parameter."""
    return {
        kind
        for kind, tensors in manifest.state.items()
        if any(entry.shape == manifest.parameters[name].shape != () for name, entry in tensors.items())
    }


def _raw(tensor: torch.Tensor) -> np.ndarray:
    width = tensor.element_size()
    return tensor.reshape(-1).view(torch.uint8).cpu().numpy().view(f"u{width}")


def _as_tensor(elements: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(elements).view(np.uint8)).view(dtype)
