"""The sections of `[data]`, one a kind: where the data lie and how they are drawn; reading them is not done here."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hpcpipe.job import values
from hpcpipe.job.datafile import expanded, resolve
from hpcpipe.job.factory import OWN, FactoryName
from hpcpipe.job.section import Rooted, Section
from hpcpipe.job.values import LARGEST, Count, Seed

DataKind = Literal["text", "tokens", "image-text", "synthetic", "module:function"]
FileText = Annotated[str, AfterValidator(values.text)]
AnyTime = Annotated[int, Field(ge=0, le=LARGEST)]


class Samples(Rooted):
    """What all kinds share whose samples are drawn: the order, and what is held out for evaluation."""

    seed: Seed = Field(default=0, description="seed of the order in which samples are drawn")
    eval_fraction: float = Field(
        default=0.0, ge=0, lt=1, description="share of the samples, the last ones, that is held out for evaluation"
    )
    eval_every: AnyTime = Field(
        default=0, description="steps between two evaluations; 0: only after the last step, if anything is held out"
    )
    eval_samples: AnyTime = Field(default=0, description="held-out samples of an evaluation, the first ones; 0: all")
    eval_microbatch_size: AnyTime = Field(
        default=0, description="samples of a micro-batch of an evaluation; 0: as in training"
    )

    @property
    def evaluates(self) -> bool:
        """Whether anything is held out."""
        return self.eval_fraction > 0


class Stored(Samples):
    """What the kinds share whose samples lie in a file."""

    path: FileText = Field(
        description='file, from the job file\'s folder on, or "package:PKG/FILE", a file of an installed package',
        examples=["corpus.txt"],
    )
    eval_path: str = Field(default="", description='file of the same kind for evaluation instead; "": none')

    def resolve(self, text: str) -> Path:
        """Return a path of this section, absolute."""
        return resolve(text, folder=self._folder)

    @property
    def resolved_path(self) -> Path:
        """The file to read, absolute."""
        return self.resolve(self.path)

    @property
    def evaluates(self) -> bool:
        """Whether anything is held out."""
        return self.eval_fraction > 0 or bool(self.eval_path)

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        given = {key: getattr(self, key) for key in ("path", "eval_path", "tokenizer") if getattr(self, key, "")}
        return {k: str(self.resolve(v)) for k, v in given.items() if not v.startswith("package:")}


class Tokenized(Stored):
    """What the kinds share that hold texts."""

    tokenizer: str = Field(
        default="", description='tokenizer.json of the tokenizers library; "": every byte is a token'
    )

    @property
    def resolved_tokenizer(self) -> Path | None:
        """The tokenizer.json, absolute; None where every byte is a token."""
        return self.resolve(self.tokenizer) if self.tokenizer else None


class DataFile(Stored):
    """What the kinds share that cut a file of tokens into sequences."""

    seq_len: Count = Field(description="tokens of a sequence (default: the model's context)", examples=[128])


class Text(DataFile, Tokenized):
    """`[data]` of kind "text": a text to train on; its tokens are a tokenizer's, or its bytes."""

    kind: DataKind = Field(description="kind of data", examples=["text"])


class Tokens(DataFile):
    """`[data]` of kind "tokens": token ids in a file: raw (nanoGPT's .bin), Megatron's .bin and .idx, .npy or HDF5."""

    kind: DataKind = Field(description="kind of data", examples=["tokens"])
    dtype: Literal["auto", "uint8", "uint16", "uint32", "int32", "int64"] = Field(
        default="auto", description='type of the ids in a raw .bin file; "auto" is uint16; other formats say it'
    )
    dataset: str = Field(default="tokens", description="name of the data set in an HDF5 file")
    end_of_document: int = Field(
        default=-1, ge=-1, le=LARGEST, description="id put behind each document that does not end with it; -1: none"
    )


class OwnData(Samples):
    """`[data]` of kind "module:function": what a function of your own returns."""

    kind: FactoryName = Field(description="kind of data", examples=[OWN])
    options: dict[str, Any] = Field(default={}, description="keywords that the function is called with")
    import_from: str = Field(default="", description='folder put on the import path; "": the job file\'s folder')

    @property
    def folder(self) -> Path:
        """The folder that the module is imported from first, absolute."""
        return (self._folder / expanded(self.import_from)).absolute()

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        return {"import_from": str(self.folder)}


class ImageText(Tokenized):
    """`[data]` of kind "image-text": records of images and a text, whose tokens are a tokenizer's, or its bytes."""

    kind: DataKind = Field(description="kind of data", examples=["image-text"])
    path: FileText = Field(
        description='file of JSON lines {"image": path or list of paths, "text": ...}, webdataset .tar, or folder of '
        'those, from the job file\'s folder on, or "package:PKG/FILE"',
        examples=["records.jsonl"],
    )
    max_side: Count = Field(default=1024, description="longest side of an image in pixels")
    larger: Literal["refuse", "shrink"] = Field(default="refuse", description="what is done to larger images")


class SyntheticData(Section):
    """`[data]` of kind "synthetic": none."""

    kind: DataKind = Field(description="kind of data", examples=["synthetic"])


DATASETS: dict[str, type[Section]] = {
    "text": Text,
    "tokens": Tokens,
    "image-text": ImageText,
    "synthetic": SyntheticData,
    OWN: OwnData,
}
"""The sections by kind."""
