"""In which types a job computes and exchanges, as torch knows them, and what has to be converted for it.

Gradients are added and parameters updated in fp32 whatever the types here; that is bucket.py's matter.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from hpcpipe.job import Job
from hpcpipe.runtime.structure import map_tensors

if TYPE_CHECKING:
    from hpcpipe.runtime.stage import Batches

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Types(NamedTuple):
    """The types of parameters and activations, and of gradients on their way between replicas."""

    compute: torch.dtype = torch.float32
    reduce: torch.dtype = torch.float32


def types_of(job: Job) -> Types:
    """Return the types of a job."""
    return Types(_DTYPES[job.precision.compute], _DTYPES[job.precision.reduce])


def convert_frozen(modules: Iterable[nn.Module], compute: torch.dtype) -> None:
    """Convert the parameters that are not trained; the others are converted with their bucket, buffers stay."""
    for module in modules:
        for parameter in module.parameters():
            if not parameter.requires_grad and parameter.is_floating_point():
                parameter.data = parameter.data.to(compute)


class ConvertedInputs:
    """Micro-batches whose floating inputs have the model's type; targets stay, because the loss is made in fp32."""

    def __init__(self, batches: "Batches", compute: torch.dtype) -> None:
        self._batches = batches
        self._compute = compute

    def load(self, step: int) -> None:
        """Make the step's micro-batches ready."""
        self._batches.load(step)

    def inputs(self, microbatch: int) -> Any:
        """Return the model's input."""
        return map_tensors(self._batches.inputs(microbatch), partial(in_type, compute=self._compute))

    def targets(self, microbatch: int) -> Any:
        """Return what the loss compares with."""
        return self._batches.targets(microbatch)


def in_type(tensor: torch.Tensor, *, compute: torch.dtype) -> torch.Tensor:
    """Return an input in the type of the model, if it is a floating one."""
    return tensor.to(compute) if tensor.is_floating_point() else tensor
