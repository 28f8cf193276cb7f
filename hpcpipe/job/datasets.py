"""The sections of `[data]`, one a kind: where the data lie and how they are drawn; reading them is not done here."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr

from hpcpipe.job import values
from hpcpipe.job.datafile import resolve
from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, Seed

DataKind = Literal["text", "synthetic"]
FileText = Annotated[str, AfterValidator(values.text)]


class Text(Section):
    """`[data]` of kind "text": the text to train on; every byte is a token."""

    kind: DataKind = Field(description="kind of data", examples=["text"])
    path: FileText = Field(
        description='file, from the job file\'s folder on, or "package:PKG/FILE", a file of an installed package',
        examples=["corpus.txt"],
    )
    seq_len: Count = Field(description="tokens of a sequence (default: the model's context)", examples=[128])
    seed: Seed = Field(default=0, description="seed of the order in which sequences are drawn")

    _folder: Path = PrivateAttr(default=Path())

    def set_folder(self, folder: Path) -> None:
        """Set where a relative path starts; the loader does it, once."""
        self._folder = folder

    @property
    def resolved_path(self) -> Path:
        """The file to read, absolute."""
        return resolve(self.path, folder=self._folder)


class SyntheticData(Section):
    """`[data]` of kind "synthetic": none."""

    kind: DataKind = Field(description="kind of data", examples=["synthetic"])


DATASETS: dict[str, type[Section]] = {"text": Text, "synthetic": SyntheticData}
"""The sections by kind."""
