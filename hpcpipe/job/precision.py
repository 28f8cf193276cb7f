"""The section `[precision]`: in which types a model computes and gradients travel."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from hpcpipe.job.section import Section
from hpcpipe.job.values import wrong
from hpcpipe.job.words import describe

MOST_SCALE = 2.0**100

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of one value of each type."""


def _loss_scale(value: Any) -> str | float:
    if value in ("auto", "dynamic"):
        return str(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_SCALE:
        return float(value)
    raise wrong(
        f'must be "auto", "dynamic" or a number above 0, got {describe(value)}',
        'for example loss_scale = "dynamic" or loss_scale = 1024.0',
    )


LossScale = Annotated[str | float, PlainValidator(_loss_scale)]


class Precision(Section):
    """`[precision]`: gradients are always added, and parameters always updated, in fp32."""

    compute: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="type of parameters, activations and their gradients on every stage"
    )
    reduce: Literal["fp32", "bf16"] = Field(default="fp32", description="type in which replicas exchange gradients")
    loss_scale: LossScale = Field(
        default="auto",
        description="what the loss is multiplied by before the backward, and gradients divided by after it; "
        "dynamic: as much as does not overflow; auto: dynamic under fp16, else 1",
    )

    @property
    def dynamic_scale(self) -> bool:
        """Whether the loss scale follows what overflows."""
        return self.loss_scale == "dynamic" or (self.loss_scale == "auto" and self.compute == "fp16")

    @property
    def first_scale(self) -> float:
        """The loss scale of the first step; 2^16 where it is dynamic, as torch.amp begins."""
        if isinstance(self.loss_scale, float):
            return self.loss_scale
        return 65536.0 if self.dynamic_scale else 1.0
