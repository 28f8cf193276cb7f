"""The sections of `[model]`, one a kind: what a model is made of; building it is not done here."""

from typing import Literal

from pydantic import Field

from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, Recompute

ModelKind = Literal["gpt", "synthetic"]


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


MODELS: dict[str, type[Section]] = {"gpt": Gpt, "synthetic": SyntheticModel}
"""The sections by kind."""
