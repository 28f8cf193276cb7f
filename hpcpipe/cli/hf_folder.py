"""The model of a checkpoint as a Hugging Face folder: brings the reader of one and the writer of the other together.

Torch is loaded when it is used; MPI is not needed.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpcpipe.checkpoint import Reader
from hpcpipe.job import Job
from hpcpipe.job.models import LanguageModel

if TYPE_CHECKING:
    import torch


def language_model_of(reader: Reader) -> LanguageModel | None:
    """Return the model of a checkpoint, if Hugging Face has names for it."""
    model = Job.from_resolved(reader.manifest.job_toml).model
    return model if isinstance(model, LanguageModel) else None


def write_hf_folder(reader: Reader, model: LanguageModel, folder: Path, *, shard_bytes: int) -> list[Path]:
    """Write the model into a folder that is not there yet or empty, and return its files.

    What the folder that the training began with holds besides weights (its tokenizer) comes along, if it is there.

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
        _Parameters(reader),
        like=like if like is not None and like.is_dir() else None,
        shard_bytes=shard_bytes,
    )
    return sorted(folder.iterdir())


class _Parameters(Mapping[str, "torch.Tensor"]):
    """The parameters of a checkpoint by layer and name, each read when it is asked for."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, name: str) -> "torch.Tensor":
        import torch

        from hpcpipe.job.huggingface.folder import FLOATS

        entry = self._reader.manifest.parameters[name]
        elements = torch.from_numpy(self._reader.elements(name, entry))
        return elements.view(getattr(torch, FLOATS[entry.dtype])).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.manifest.parameters)

    def __len__(self) -> int:
        return len(self._reader.manifest.parameters)
