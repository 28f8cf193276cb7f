"""Steps of torch's DistributedDataParallel over gloo, over layers that only take their time.

The reducer, its hooks, its buckets and the optimizer are torch's. Importing this module imports torch, not its process
group.
"""

import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hpcpipe.bench.dataparallel.models import Model
from hpcpipe.bench.dataparallel.ours import RATE
from hpcpipe.device.sleeping import sleep_precisely
from hpcpipe.runtime import now

MEGABYTE = 1 << 20
"""What `bucket_cap_mb` counts in."""


class Ddp:
    """One replica; the process group must be there. `bucket_mb` as torch takes it, None for its default."""

    def __init__(self, model: Model, *, bucket_mb: float | None) -> None:
        sleep_precisely()
        self._module = DistributedDataParallel(_Layers(model), bucket_cap_mb=bucket_mb)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=RATE)
        self._input = torch.zeros(1)

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns."""
        ends = []
        for _ in range(steps):
            self._optimizer.zero_grad(set_to_none=True)
            self._module(self._input).sum().backward()
            self._optimizer.step()
            ends.append(now())
        return ends

    def free(self) -> None:
        """Do nothing: torch frees what it holds."""


class _SleepingLayer(torch.autograd.Function):
    """Takes its time in both directions; gradients are made within it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, forward_s: float, *parameters: torch.Tensor) -> torch.Tensor:
        """Return the input after the forward's time."""
        ctx.seconds, ctx.shapes = 2 * forward_s, [each.shape for each in parameters]
        time.sleep(forward_s)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return zeros after the backward's time."""
        began = time.monotonic()
        found = [torch.zeros(shape) for shape in ctx.shapes]
        time.sleep(max(0.0, began + ctx.seconds - time.monotonic()))
        return gradients[0], None, *found


class _Layers(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self._layers = nn.ModuleList(
            nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in layer.shapes]) for layer in model.layers
        )
        self._forward_s = [ms * 1e-3 for ms in model.forward_ms()]

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.detach().requires_grad_()
        for layer, seconds in zip(self._layers, self._forward_s, strict=True):
            value = _SleepingLayer.apply(value, seconds, *layer.parameters())
        return value
