"""The section `[optimizer]`."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from hpcpipe.job import values
from hpcpipe.job.section import Section
from hpcpipe.job.values import Betas, Count
from hpcpipe.job.words import describe

MOST_NORM = 1e30


def _clip(value: Any) -> str | float:
    if value == "off":
        return "off"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_NORM:
        return float(value)
    raise values.wrong(
        f'must be "off" or a number above 0, got {describe(value)}', 'for example clip = 1.0 or clip = "off"'
    )


Clip = Annotated[str | float, PlainValidator(_clip)]


class Optimizer(Section):
    """`[optimizer]`: the update rule, its learning rate over time, and which gradients it is given."""

    name: Literal["adamw", "adam", "sgd"] = Field(default="adamw", description="update rule")
    lr: float = Field(default=1e-3, gt=0, description="highest learning rate")
    min_lr: float = Field(default=0.0, ge=0, description="learning rate in which cosine and linear end")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        default="constant", description="learning rate after the warm-up"
    )
    warmup: int = Field(default=0, ge=0, le=values.LARGEST, description="steps of linear warm-up")
    betas: Betas = Field(default=(0.9, 0.95), description="decay of Adam's moments")
    eps: float = Field(default=1e-8, gt=0, description="Adam's guard against division by zero")
    weight_decay: float = Field(
        default=0.1,
        ge=0,
        description="weight decay of matrices: decoupled under adamw, else added to the gradient",
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, description="SGD's momentum")
    clip: Clip = Field(default="off", description="largest norm of the gradient; a longer one is shortened to it")
    clip_scope: Literal["global", "stage"] = Field(
        default="global", description="whose gradients make the norm: all, or each stage's by themselves"
    )
    nonfinite: Literal["stop", "skip", "late-stop"] = Field(
        default="stop",
        description="what a gradient with NaN or infinity does: end the run, or leave out the step, both before any "
        "parameter changes; late-stop finds it after the update",
    )
    max_skips: Count = Field(default=20, description="steps left out one after the other until the run ends")
