"""Begin with the weights of a Hugging Face folder: layers that fill their parameters from its safetensors files.

A layer reads its own tensors when it is built, and nothing else; files are mapped into memory, not read whole.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from hpcpipe.job.huggingface import FolderError, Stored, Weights, open_weights, stored_tensors
from hpcpipe.job.huggingface.folder import Entry
from hpcpipe.job.models import LanguageModel
from hpcpipe.models.layer import Layer


def loaded(layers: Sequence[Layer], model: LanguageModel, folder: Path) -> list[Layer]:
    """Return the layers of a model such that they begin with the weights in a folder.

    It is opened when the first layer is built; then what it lacks is raised as one FolderError.
    """
    source = _Source(folder, model)
    of_layer: dict[str, dict[str, Stored]] = {}
    for stored in stored_tensors(model):
        of_layer.setdefault(stored.layer, {})[stored.parameter] = stored
    return [replace(layer, load=partial(source.fill, of_layer[layer.name])) for layer in layers]


class _Source:
    def __init__(self, folder: Path, model: LanguageModel) -> None:
        self._folder, self._model = folder, model

    @cached_property
    def _weights(self) -> Weights:
        return open_weights(self._folder, self._model)

    @torch.no_grad()
    def fill(self, wanted: dict[str, Stored], module: nn.Module) -> None:
        """Give every parameter of the module its values, converted to its type."""
        for name, parameter in module.named_parameters():
            stored = wanted[name]
            tensor = _read(self._weights.entries[stored.tensor])
            if stored.copy:
                self._check_doubled(stored, tensor)
            parameter.copy_(tensor.t() if stored.transposed else tensor)

    def _check_doubled(self, stored: Stored, tensor: torch.Tensor) -> None:
        doubled = self._weights.doubled
        if doubled is not None and not torch.equal(_read(doubled), tensor):
            raise FolderError(
                f"{self._folder}: {doubled.name} is not {stored.tensor}, although config.json ties them; set "
                "tie_word_embeddings to false there if the model was trained so"
            )


def _read(entry: Entry) -> torch.Tensor:
    with safe_open(entry.file, framework="pt") as file:
        return file.get_tensor(entry.name)
