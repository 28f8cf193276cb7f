"""The sections of `[model]`, one a kind: what a model is made of; building it is not done here."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from hpcpipe.job.factory import OWN, FactoryName
from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, Recompute

ModelKind = Literal["gpt", "synthetic", "module:function"]


class Gpt(Section):
    """`[model]` of kind "gpt": its sizes."""

    kind: ModelKind = Field(description="kind of model", examples=["gpt"])
    layers: Count = Field(description="transformer blocks", examples=[4])
    dim: Count = Field(description="width of the residual stream", examples=[128])
    heads: Count = Field(description="attention heads, which divide dim", examples=[4])
    context: Count = Field(description="longest sequence in tokens", examples=[128])
    vocab_size: Count = Field(default=256, description="number of different tokens")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations that are dropped in training")
    tied: bool = Field(default=False, description="one matrix for the token embedding and the head, as in GPT-2")
    recompute: Recompute = Field(
        default="none",
        description='blocks whose activations the backward computes again: "none", "all" (each by itself) or ranges '
        "[first, last], of each of which only the input is kept",
    )


class SyntheticModel(Section):
    """`[model]` of kind "synthetic": no parameters, only the times of the emulated device."""

    kind: ModelKind = Field(description="kind of model", examples=["synthetic"])


class OwnModel(Section):
    """`[model]` of kind "module:function": layers and loss that a function of your own returns."""

    kind: FactoryName = Field(description="kind of model", examples=[OWN])
    options: dict[str, Any] = Field(default={}, description="keywords that the function is called with")
    import_from: str = Field(default="", description='folder put on the import path; "": the job file\'s folder')
    recompute: Recompute = Field(
        default="none",
        description='layers whose activations the backward computes again: "none", "all" (each by itself) or ranges '
        "[first, last], of each of which only the input is kept",
    )

    _folder: Path = PrivateAttr(default=Path())

    def set_folder(self, folder: Path) -> None:
        """Set where a relative folder starts; the loader does it, once."""
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The folder that the module is imported from first, absolute."""
        return (self._folder / Path(self.import_from).expanduser()).absolute()

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        return {"import_from": str(self.folder)}


MODELS: dict[str, type[Section]] = {"gpt": Gpt, "synthetic": SyntheticModel, OWN: OwnModel}
"""The sections by kind."""
