"""The sections of `[model]`, one a kind: what a model is made of; building it is not done here."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hpcpipe.job import values
from hpcpipe.job.datafile import PACKAGE, expanded, resolve
from hpcpipe.job.factory import OWN, FactoryName
from hpcpipe.job.rope import NoScaling, RopeScaling
from hpcpipe.job.section import Rooted, Section
from hpcpipe.job.values import Count, Recompute

ModelKind = Literal["gpt", "llama", "vlm", "synthetic", "module:function"]
Epsilon = Annotated[float, Field(gt=0, lt=1)]


class LanguageModel(Rooted):
    """What the models of token sequences have in common; with `init` the folder's config.json gives the sizes."""

    kind: ModelKind = Field(description="kind of model", examples=["gpt"])
    layers: Count = Field(description="transformer blocks", examples=[4])
    dim: Count = Field(description="width of the residual stream", examples=[128])
    heads: Count = Field(description="attention heads, which divide dim", examples=[4])
    context: Count = Field(description="longest sequence in tokens", examples=[128])
    vocab_size: Count = Field(default=256, description="number of different tokens")
    init: Annotated[str, AfterValidator(lambda path: path and values.text(path))] = Field(
        default="",
        description='Hugging Face folder with config.json and safetensors to start from; "": random weights',
        examples=["SmolLM2-135M"],
    )
    recompute: Recompute = Field(
        default="none",
        description='blocks whose activations the backward computes again: "none", "all" (each by itself) or ranges '
        "[first, last], of each of which only the input is kept",
    )

    @property
    def blocks(self) -> int:
        """How many blocks can be cut apart."""
        return self.layers

    @property
    def init_folder(self) -> Path | None:
        """The folder of the weights to start from, absolute; None where they are drawn."""
        return resolve(self.init, folder=self._folder) if self.init else None

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        return {} if not self.init or self.init.startswith(PACKAGE) else {"init": str(self.init_folder)}


class Gpt(LanguageModel):
    """`[model]` of kind "gpt": GPT-2's layout."""

    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations that are dropped in training")
    norm_eps: Epsilon = Field(default=1e-5, description="what the norms add to the variance")
    tied: bool = Field(default=False, description="one matrix for the token embedding and the head, as in GPT-2")


class Llama(LanguageModel):
    """`[model]` of kind "llama": rotary positions, RMS norms, gated MLP, fewer key than query heads."""

    kv_heads: Count = Field(description="key and value heads, which divide heads (default: heads)", examples=[2])
    head_dim: Count = Field(description="width of a head, even (default: dim / heads)", examples=[32])
    mlp_dim: Count = Field(description="width of the MLP", examples=[384])
    norm_eps: Epsilon = Field(default=1e-5, description="what the norms add to the mean square")
    rope_theta: float = Field(default=10000.0, gt=0, description="base of the wavelengths of the rotary positions")
    rope_scaling: RopeScaling = Field(default=NoScaling(), description="how they are stretched to longer contexts")
    attention_bias: bool = Field(default=False, description="whether the projections of the attention have biases")
    mlp_bias: bool = Field(default=False, description="whether those of the MLP have")
    tied: bool = Field(default=False, description="one matrix for the token embedding and the head")


class Vlm(Section):
    """`[model]` of kind "vlm": a vision transformer, a projector, and a GPT that reads images and text."""

    kind: ModelKind = Field(description="kind of model", examples=["vlm"])
    patch: Count = Field(description="side of a patch in pixels", examples=[16])
    channels: Literal[1, 3] = Field(default=3, description="colours of an image: 1 is grey, 3 is RGB")
    merge: Count = Field(
        default=1, description="side of the square of patches that become one token of the language model"
    )
    encoder_layers: Count = Field(description="transformer blocks of the image encoder", examples=[4])
    encoder_dim: Count = Field(description="its width, a multiple of 4", examples=[128])
    encoder_heads: Count = Field(description="its attention heads, which divide encoder_dim", examples=[4])
    layers: Count = Field(description="transformer blocks of the language model", examples=[4])
    dim: Count = Field(description="width of its residual stream", examples=[128])
    heads: Count = Field(description="its attention heads, which divide dim", examples=[4])
    context: Count = Field(description="longest record in tokens, those of its images included", examples=[256])
    vocab_size: Count = Field(default=258, description="number of different tokens")
    tied: bool = Field(default=False, description="one matrix for the token embedding and the head")
    recompute: Recompute = Field(
        default="none",
        description='blocks whose activations the backward computes again: "none", "all" (each by itself) or ranges '
        "[first, last]; the encoder's blocks come first, then the projector, then the language model's",
    )

    @property
    def blocks(self) -> int:
        """How many blocks can be cut apart: the encoder's, the projector, the language model's."""
        return self.encoder_layers + 1 + self.layers


class SyntheticModel(Section):
    """`[model]` of kind "synthetic": no parameters, only the times of the emulated device."""

    kind: ModelKind = Field(description="kind of model", examples=["synthetic"])


class OwnModel(Rooted):
    """`[model]` of kind "module:function": layers and loss that a function of your own returns."""

    kind: FactoryName = Field(description="kind of model", examples=[OWN])
    options: dict[str, Any] = Field(default={}, description="keywords that the function is called with")
    import_from: str = Field(default="", description='folder put on the import path; "": the job file\'s folder')
    recompute: Recompute = Field(
        default="none",
        description='layers whose activations the backward computes again: "none", "all" (each by itself) or ranges '
        "[first, last], of each of which only the input is kept",
    )

    @property
    def folder(self) -> Path:
        """The folder that the module is imported from first, absolute."""
        return (self._folder / expanded(self.import_from)).absolute()

    def absolute_paths(self) -> dict[str, str]:
        """Return the keys that hold paths with these made absolute."""
        return {"import_from": str(self.folder)}


MODELS: dict[str, type[Section]] = {
    "gpt": Gpt,
    "llama": Llama,
    "vlm": Vlm,
    "synthetic": SyntheticModel,
    OWN: OwnModel,
}
"""The sections by kind."""
