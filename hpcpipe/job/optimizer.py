"""The section `[optimizer]`."""

from typing import Literal

from pydantic import Field

from hpcpipe.job import values
from hpcpipe.job.section import Section
from hpcpipe.job.values import Betas


class Optimizer(Section):
    """`[optimizer]`: the update rule and its learning rate over time."""

    name: Literal["adamw", "sgd"] = Field(default="adamw", description="update rule")
    lr: float = Field(default=1e-3, gt=0, description="highest learning rate")
    schedule: Literal["constant", "cosine"] = Field(default="constant", description="learning rate after the warm-up")
    warmup: int = Field(default=0, ge=0, le=values.LARGEST, description="steps of linear warm-up")
    betas: Betas = Field(default=(0.9, 0.95), description="decay of AdamW's moments")
    eps: float = Field(default=1e-8, gt=0, description="AdamW's guard against division by zero")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled weight decay")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="SGD's momentum")
