"""The model of a checkpoint as a Hugging Face folder: brings the reader of one and the writer of the other together.

Torch is loaded when it is used; MPI is not needed.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import Reader
from hpcpipe.job.models import MODELS, LanguageModel

if TYPE_CHECKING:
    import torch


def language_model_of(reader: Reader) -> LanguageModel | None:
    """Return the model of a checkpoint, if Hugging Face has names for it; the rest of the job is not looked at."""
    table = tomllib.loads(reader.manifest.job_toml)["model"]
    section = MODELS.get(table["kind"])
    if section is None or not issubclass(section, LanguageModel):
        return None
    return section.model_validate(table)


def write_hf_folder(
    reader: Reader, model: LanguageModel, folder: Path, *, shard_bytes: int, note: Callable[[int], object]
) -> list[Path]:
    """Write the model into a folder that is not there yet or empty, and return its files.

    What the folder that the training began with holds besides weights (its tokenizer) comes along, if it is there.
    `note` is called with the bytes of each tensor that is read.

    Raises
    ------
    CheckpointError, OSError
        It cannot be read or written.
    """
    from hpcpipe.models.hf_export import export_hf

    if folder.is_dir():
        folder.rmdir()
    like = model.init_folder
    export_hf(
        folder,
        model,
        _Parameters(reader, note),
        like=like if like is not None and like.is_dir() else None,
        shard_bytes=shard_bytes,
    )
    return sorted(folder.iterdir())


class _Parameters(Mapping[str, "torch.Tensor"]):
    """The parameters of a checkpoint by layer and name, each read when it is asked for."""

    def __init__(self, reader: Reader, note: Callable[[int], object]) -> None:
        self._reader, self._note = reader, note

    def __getitem__(self, name: str) -> "torch.Tensor":
        import torch

        from hpcpipe.job.huggingface.folder import FLOATS

        entry = self._reader.manifest.parameters[name]
        elements = torch.from_numpy(self._reader.elements(name, entry))
        self._note(elements.nbytes)
        return elements.view(getattr(torch, FLOATS[entry.dtype])).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.manifest.parameters)

    def __len__(self) -> int:
        return len(self._reader.manifest.parameters)
